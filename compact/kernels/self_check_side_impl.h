// SPDX-License-Identifier: Apache-2.0
// One side of a comparison: the tensors of one kernel call, in host or device memory, between guard
// bytes. Both sides make the same tensors in the same order, run, and are compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compact/kernels/bfloat16.h"
#include "compact/kernels/self_check.h"

namespace compact::kernels {

class Side {
 public:
  // Tensors start `shift` elements after a 64-byte boundary.
  Side(const Memory& memory, int shift) : memory_(memory), shift_(shift) {}
  ~Side();
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  // A tensor of these values, rounded to type.
  void* tensor(const char* name, std::span<const float> values, Type type);
  // A tensor of `count` elements that holds garbage.
  void* blank(const char* name, int64_t count, Type type);
  float* floats(const char* name, std::span<const float> values) {
    return static_cast<float*>(tensor(name, values, Type::kFloat32));
  }
  float* blank_floats(const char* name, int64_t count) {
    return static_cast<float*>(blank(name, count, Type::kFloat32));
  }
  // Bytes that hold garbage; compared bit for bit.
  uint8_t* blank_bytes(const char* name, int64_t count);
  // Plain data that no kernel writes.
  template <class T>
  const T* data(const char* name, const std::vector<T>& values) {
    return static_cast<const T*>(
        put(name, std::as_bytes(std::span(values)), sizeof(T), Kind::kData));
  }
  // A tensor whose content after the call is not compared.
  float* scratch(const char* name, int64_t count);

  // Copies all tensors back.
  void fetch();
  // The first difference to the other side, or empty. A tolerance of 0 means the same bits; else an
  // f32 element may be off by tolerance * (its size + the tensor's root mean square), a bf16 one by
  // one unit in the last place more. Raises `worst`.
  std::string difference(const Side& want, double tolerance, double& worst) const;

 private:
  enum class Kind { kFloat32, kBFloat16, kData, kScratch };
  struct Entry {
    std::string name;
    Kind kind;
    size_t begin, bytes;          // of the tensor within `host`
    std::vector<std::byte> host;  // guards included
    void* base;
  };
  void guard(const Entry& e, bool on) const;
  void* put(const char* name, std::span<const std::byte> bytes, size_t element, Kind kind);

  Memory memory_;
  int shift_;
  std::vector<Entry> entries_;
};

}  // namespace compact::kernels
