// SPDX-License-Identifier: Apache-2.0
// Copies on the meta device: the CPU's copy of a transposed matrix takes a tile beside it.
#include <ATen/ATen.h>
#include <ATen/ops/copy_native.h>

#include "compact/codecs/meta_device.h"
#include "compact/plan/meta/library_impl.h"

namespace compact {
namespace {

using at::Tensor;

constexpr int64_t kTile = 60, kTileOfBytes = 120;  // rows and columns

// Whether LibTorch copies tile by tile (copy_transpose_valid in ATen/native/Copy.cpp).
bool is_transposed(const Tensor& to, const Tensor& from) {
  return from.dim() == 2 && to.numel() >= kTile * kTile && to.is_contiguous() &&
         from.stride(0) == 1 && from.stride(1) == from.size(0) && to.sizes() == from.sizes() &&
         to.scalar_type() == from.scalar_type() && to.is_neg() == from.is_neg() &&
         to.is_conj() == from.is_conj();
}

Tensor& copy(Tensor& to, const Tensor& from, bool non_blocking) {
  at::native::copy_(to, from, non_blocking);
  if (meta_device() == c10::kCPU && from.is_meta() && is_transposed(to, from)) {
    const int64_t side = to.scalar_type() == at::kByte ? kTileOfBytes : kTile;
    at::empty({side, side}, to.options());
  }
  return to;
}

}  // namespace

void add_copies(MetaLibrary& library) { library.replace("copy_", &copy); }

}  // namespace compact
