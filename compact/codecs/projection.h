// SPDX-License-Identifier: Apache-2.0
// Random projections P [n, r] with E[P P^T] = I: what CompAct (arXiv 2410.15352) keeps of a
// linear's input, z = x P, and the space in which gradient and optimizer state live. A projection
// is its type, shape and key; dense matrices are drawn again at each use and never stored.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "compact/kernels/gpu.h"

namespace compact {

class Projection {
 public:
  virtual ~Projection() = default;
  // x [..., n], last dimension contiguous -> z = x P, [rows, r], type of x.
  virtual at::Tensor apply(const at::Tensor& x) const = 0;
  // z [rows, r] -> z P^T, f32 [rows, n]: an unbiased estimate of the x that z was made from.
  virtual at::Tensor transpose(const at::Tensor& z) const = 0;
  // P itself, f32 [n, r].
  virtual at::Tensor matrix() const = 0;
  // P^T other, f32 [r, other.r]: changes coordinates in this basis to the other (m -> m P^T other).
  at::Tensor overlap(const Projection& other) const;
  // Bytes that live as long as the projection (SRHT: signs and index; dense: none).
  virtual int64_t bytes() const = 0;
  int64_t n() const { return n_; }
  int64_t r() const { return r_; }
  at::Device device() const { return device_; }

 protected:
  Projection(int64_t n, int64_t r, at::Device device) : n_(n), r_(r), device_(device) {}
  int64_t n_, r_;
  at::Device device_;
};
using ProjectionPtr = std::shared_ptr<const Projection>;

struct ProjectionInfo {
  std::string name, summary;
  // E|x P P^T - x|^2 / |x|^2.
  double (*relative_error)(int64_t n, int64_t r);
  // `options` give device and the type that P is rounded to (dense types).
  ProjectionPtr (*make)(int64_t n, int64_t r, uint64_t key, at::TensorOptions options);
};

// gaussian, rademacher, sparse, srht.
std::span<const ProjectionInfo* const> projections();
// Throws InputError with a suggestion on an unknown name, on r < 1 and r > n.
ProjectionPtr make_projection(std::string_view name, int64_t n, int64_t r, uint64_t key,
                              at::TensorOptions options);

// `inner` applied to rows that end with so many elements of padding, which are 0 and stay 0;
// `inner` itself where `zeros` is 0.
ProjectionPtr beside_zeros(ProjectionPtr inner, int64_t zeros);

// Throws InputError where the CUDA backend cannot hold a row of n of `srht` on this GPU.
void check_srht_row(int64_t n, const kernels::Gpu& gpu);

// A rank below 1 is a fraction of n (at least 1 after rounding), an integer from 1 up is absolute.
// Throws InputError on rank <= 0, a fraction above 1, or a rank above n.
int64_t resolve_rank(double rank, int64_t n);

}  // namespace compact
