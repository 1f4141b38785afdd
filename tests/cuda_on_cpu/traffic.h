// SPDX-License-Identifier: Apache-2.0
// What the parts of cuda_traffic share: tensors of the emulated device, and a row of the table.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/kernels/dispatch.h"
#include "compact/kernels/kernels.h"
#include "emulator.h"

namespace compact::kernels {

inline constexpr Type kTypes[] = {Type::kFloat32, Type::kBFloat16};
inline const char* text_of(Type type) { return type == Type::kFloat32 ? "f32" : "bf16"; }

// Tensors of one call on the emulated device.
class Tensors {
 public:
  ~Tensors() {
    for (void* p : all_) emulated::release(p);
  }
  // `count` values of about 1.
  void* of(Type type, int64_t count) {
    void* p = blank(count * (type == Type::kFloat32 ? 4 : 2));
    with_type(type, [&]<class T>() {
      for (int64_t i = 0; i < count; ++i) {
        const Random4 r = philox(3, static_cast<uint64_t>(i));
        store(static_cast<T*>(p)[i], static_cast<float>(static_cast<int32_t>(r.v[0])) * 0x1p-30f);
      }
    });
    return p;
  }
  float* floats(int64_t count) { return static_cast<float*>(of(Type::kFloat32, count)); }
  void* blank(int64_t bytes) {
    all_.push_back(emulated::allocate(static_cast<size_t>(bytes)));
    return all_.back();
  }
  uint8_t* bytes(int64_t count) { return static_cast<uint8_t*>(blank(count)); }

 private:
  std::vector<void*> all_;
};

inline const Backend& cuda() { return backend_for(Device::kCuda); }

// Runs a kernel once and prints what it touched; whether that is not too much.
bool report(const std::string& what, const std::function<void(Tensors&)>& run);

// A block of the emulator walks over sixteen rows, as one of 2,048 does over 32,768.
inline constexpr int64_t kRows = 48, kWidth = 2048, kParts = 3;

// The kernels of layers, of updates and projections, and of codecs, on a type.
bool traffic_of_layers(Type type);
bool traffic_of_updates(Type type);
bool traffic_of_codecs(Type type);

}  // namespace compact::kernels
