// SPDX-License-Identifier: Apache-2.0
// The table of projections, and what all of them share.
#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "compact/base/check.h"
#include "compact/base/named.h"
#include "compact/codecs/blocks.h"
#include "compact/codecs/projection_types_impl.h"

namespace compact {
namespace {

class BesideZeros final : public Projection {
 public:
  BesideZeros(ProjectionPtr inner, int64_t zeros)
      : Projection(inner->n() + zeros, inner->r(), inner->device()),
        inner_(std::move(inner)),
        zeros_(zeros) {}

  at::Tensor apply(const at::Tensor& x) const override {
    return inner_->apply(x.narrow(-1, 0, inner_->n()));
  }
  at::Tensor transpose(const at::Tensor& z) const override {
    return at::constant_pad_nd(inner_->transpose(z), {0, zeros_});
  }
  at::Tensor matrix() const override {
    return at::constant_pad_nd(inner_->matrix(), {0, 0, 0, zeros_});
  }
  int64_t bytes() const override { return inner_->bytes(); }

 private:
  ProjectionPtr inner_;
  int64_t zeros_;
};

}  // namespace

ProjectionPtr beside_zeros(ProjectionPtr inner, int64_t zeros) {
  return zeros == 0 ? inner : std::make_shared<BesideZeros>(std::move(inner), zeros);
}

std::span<const ProjectionInfo* const> projections() {
  static const ProjectionInfo* const all[] = {&gaussian_projection, &rademacher_projection,
                                              &sparse_projection, &srht_projection};
  return all;
}

ProjectionPtr make_projection(std::string_view name, int64_t n, int64_t r, uint64_t key,
                              at::TensorOptions options) {
  const ProjectionInfo& info = named(projections(), name, "[projection] unknown type");
  COMPACT_CHECK(r >= 1 && r <= n, "[projection] rank must be from 1 to the input width ", n,
                ", is ", r);
  return info.make(n, r, key, options);
}

int64_t resolve_rank(double rank, int64_t n) {
  COMPACT_CHECK(rank > 0, "[projection] rank must be positive, is ", rank);
  if (rank < 1) return std::max<int64_t>(1, std::llround(rank * static_cast<double>(n)));
  COMPACT_CHECK(rank == std::floor(rank),
                "[projection] rank must be a fraction below 1 or a whole number, is ", rank);
  COMPACT_CHECK(rank <= static_cast<double>(n),
                "[projection] rank must be at most the input width ", n, ", is ", rank);
  return static_cast<int64_t>(rank);
}

at::Tensor Projection::overlap(const Projection& other) const {
  COMPACT_CHECK(n_ == other.n_, "[projection] overlap needs bases of one space, has widths ", n_,
                " and ", other.n_);
  const at::Tensor identity = at::eye(r_, at::device(device_).dtype(at::kFloat));
  at::Tensor result = at::empty({r_, other.r_}, identity.options());
  for_blocks(0, r_, block_rows(n_), [&](int64_t begin, int64_t rows) {
    const at::Tensor basis = transpose(identity.narrow(0, begin, rows));  // rows of P^T
    result.narrow(0, begin, rows).copy_(other.apply(basis));
  });
  return result;
}

}  // namespace compact
