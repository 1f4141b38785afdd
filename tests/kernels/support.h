// SPDX-License-Identifier: Apache-2.0
// Helpers of the kernel tests: buffers of either type with an odd alignment and guards, random
// inputs, comparison by type, launches.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/kernels/dispatch.h"
#include "compact/kernels/kernels.h"
#include "compact/kernels/normal.h"

namespace compact::kernels {

extern const Backend reference_backend;

inline constexpr Type kTypes[] = {Type::kFloat32, Type::kBFloat16};
inline const char* name_of(Type type) { return type == Type::kFloat32 ? "f32" : "bf16"; }

// The backends that run on this machine's CPU, and so can be compared here.
inline std::vector<const Backend*> cpu_backends() {
  std::vector<const Backend*> out;
  for (const Backend* b : backends()) {
    if (b->device == Device::kCpu) out.push_back(b);
  }
  return out;
}

// Splits [0, n) into ranges of `grain`, in real threads.
inline Launch threaded() {
  return {.parallel_for = [](int64_t n, int64_t grain, Launch::Body body) {
    std::vector<std::thread> threads;
    const int64_t step = std::max<int64_t>(std::max<int64_t>(1, grain), (n + 2) / 3);
    for (int64_t i = 0; i < n; i += step) {
      threads.emplace_back([=] { body(i, std::min(n, i + step)); });
    }
    for (std::thread& t : threads) t.join();
  }};
}

// Numbers of a type, aligned to their element only, between guards that a kernel must not touch.
class Buffer {
 public:
  Buffer(Type type, int64_t count)
      : type_(type), count_(count), bytes_(size() + 2 * kGuard, kFill) {}
  Buffer(Type type, const std::vector<float>& values)
      : Buffer(type, static_cast<int64_t>(values.size())) {
    for (int64_t i = 0; i < count_; ++i) set(i, values[static_cast<size_t>(i)]);
  }
  ~Buffer() {
    for (size_t i = 0; i < kGuard; ++i) {
      if (bytes_[i] != kFill || bytes_[bytes_.size() - 1 - i] != kFill) {
        ADD_FAILURE() << "a kernel wrote outside its tensor";
        break;
      }
    }
  }
  void* data() { return bytes_.data() + kGuard; }
  float* f32() { return static_cast<float*>(data()); }
  int64_t count() const { return count_; }
  Type type() const { return type_; }
  float operator[](int64_t i) const {
    float out = 0;
    with_type(type_, [&]<class T>() {
      T value;
      std::memcpy(&value, bytes_.data() + kGuard + static_cast<size_t>(i) * sizeof(T), sizeof(T));
      out = load(value);
    });
    return out;
  }
  void set(int64_t i, float x) {
    with_type(type_, [&]<class T>() {
      T value;
      store(value, x);
      std::memcpy(bytes_.data() + kGuard + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
    });
  }
  bool same_bits(const Buffer& other) const { return bytes_ == other.bytes_; }

 private:
  static constexpr size_t kGuard = 68;  // a multiple of 4 that is none of 8
  static constexpr unsigned char kFill = 0xa5;
  size_t size() const { return static_cast<size_t>(count_) * (type_ == Type::kFloat32 ? 4 : 2); }
  Type type_;
  int64_t count_;
  std::vector<unsigned char> bytes_;
};

inline std::vector<float> normals(int64_t count, uint64_t key, float scale = 1) {
  std::vector<float> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) out[i] = scale * normal_of(philox(key, i).v[0]);
  return out;
}
inline Buffer random(Type type, int64_t count, uint64_t key, float scale = 1) {
  return Buffer(type, normals(count, key, scale));
}

// Equal to `tolerance` relative to the larger of value and `floor` in f32, and to one rounding more
// in bf16. NaN equals NaN.
inline void expect_near(const Buffer& got, const Buffer& want, float tolerance, float floor,
                        const std::string& where) {
  ASSERT_EQ(got.count(), want.count());
  const float unit = got.type() == Type::kFloat32 ? tolerance : tolerance + 1.0f / 128;
  for (int64_t i = 0; i < got.count(); ++i) {
    const float a = got[i], b = want[i];
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const float least = got.type() == Type::kFloat32 ? floor : std::max(floor * tolerance, 1e-30f);
    ASSERT_LE(std::abs(a - b), unit * std::max(std::abs(b), least))
        << where << " element " << i << ": " << a << " for " << b;
  }
}

}  // namespace compact::kernels
