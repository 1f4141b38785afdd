// SPDX-License-Identifier: Apache-2.0
// A moment of an optimizer, in the type that the policy says.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "compact/codecs/memory_place.h"

namespace compact {

enum class MomentType : uint8_t { kFloat32, kBFloat16, kFloat8 };
struct MomentKind {
  MomentType type = MomentType::kFloat32;
  MemoryPlace place = MemoryPlace::kDevice;  // of a master, too
};
// `f32` (or empty), `bf16` or `f8`, alone or with `+offload` or `+disk`; throws InputError on
// another treatment.
MomentKind moment_kind(const std::string& text);

// f32; bf16, rounded stochastically; or 8-bit floats with a power of two for 256 neighbours of a
// row (kernels/float8.h), rounded stochastically: bf16's range in 1.02 bytes an element. Rows are
// those of the first dimension; a moment of one dimension is one row.
class Moment {
 public:
  Moment() = default;
  // Zeros, which with a place outside of the device are as zeros_in() makes them in `folder`. No
  // value of an unsigned moment may be negative.
  Moment(at::IntArrayRef sizes, const at::TensorOptions& options, MomentKind kind, bool is_signed,
         const std::string& folder = {});
  // On existing memory: f32, bf16, or bytes with scales as scales() says. Throws InputError on
  // types and sizes that are not those of a moment.
  Moment(at::Tensor value, at::Tensor scales, bool is_signed);

  bool defined() const { return value_.defined(); }
  bool packed() const { return scales_.defined(); }
  // f32, bf16, or bytes; of the moment's sizes.
  const at::Tensor& value() const { return value_; }
  // f32 [rows, ceil(row / 256)] where packed, else undefined.
  const at::Tensor& scales() const { return scales_; }
  int64_t nbytes() const;

  int64_t rows() const;
  // Rows [begin, begin + count) as floats: a view, or an f32 copy where packed.
  at::Tensor read(int64_t begin, int64_t count) const;
  // Stores changed rows of read(), rounded with random bits of `key`; nothing where the guard (f32
  // [], see Optimizer::step) is not 0.
  void write(int64_t begin, const at::Tensor& rows, uint64_t key,
             const at::Tensor& guard = {}) const;
  // Rows from `begin` on: decay * them + alpha * d; d f32 [count, ...]. Returns them as read().
  at::Tensor accumulate(int64_t begin, const at::Tensor& d, double decay, double alpha,
                        uint64_t key, const at::Tensor& guard = {}) const;

 private:
  int64_t width() const;

  at::Tensor value_, scales_;
  bool is_signed_ = true;
};

}  // namespace compact
