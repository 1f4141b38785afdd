// SPDX-License-Identifier: Apache-2.0
// Projections with independent entries. P is drawn at each use, in blocks of rows of P, block b
// from key derive(key, b); its entries are rounded to one type, which both directions use.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "compact/base/philox.h"
#include "compact/codecs/blocks.h"
#include "compact/codecs/draw.h"
#include "compact/codecs/launch.h"
#include "compact/codecs/projection_types_impl.h"

namespace compact {
namespace {

class Dense final : public Projection {
 public:
  Dense(kernels::Distribution distribution, int64_t n, int64_t r, uint64_t key,
        at::TensorOptions options)
      : Projection(n, r, options.device()),
        distribution_(distribution),
        key_(key),
        options_(options) {
    type_of(at::typeMetaToScalarType(options.dtype()));  // refuses other types
  }

  at::Tensor apply(const at::Tensor& x) const override {
    const at::NoGradGuard no_grad;
    return x.reshape({-1, n_}).mm(draw().to(x.scalar_type()));
  }

  at::Tensor transpose(const at::Tensor& z) const override {
    const at::NoGradGuard no_grad;
    const at::Tensor z32 = z.to(at::kFloat);
    at::Tensor x = at::empty({z.size(0), n_}, z32.options());
    for_blocks(0, n_, block_rows(r_), [&](int64_t begin, int64_t rows) {
      at::Tensor p = at::empty({rows, r_}, options_);
      draw_block(p, begin / block_rows(r_));
      at::Tensor part = x.narrow(1, begin, rows);
      at::mm_out(part, z32, p.to(at::kFloat).t());
    });
    return x;
  }

  at::Tensor matrix() const override {
    const at::NoGradGuard no_grad;
    return draw().to(at::kFloat);
  }

  int64_t bytes() const override { return 0; }

 private:
  at::Tensor draw() const {
    at::Tensor p = at::empty({n_, r_}, options_);
    for_blocks(0, n_, block_rows(r_), [&](int64_t begin, int64_t rows) {
      draw_block(p.narrow(0, begin, rows), begin / block_rows(r_));
    });
    return p;
  }

  void draw_block(const at::Tensor& rows, int64_t block) const {
    compact::draw(rows, distribution_, 1 / std::sqrt(static_cast<float>(r_)),
                  derive(key_, static_cast<uint64_t>(block)));
  }

  kernels::Distribution distribution_;
  uint64_t key_;
  at::TensorOptions options_;
};

template <kernels::Distribution kDistribution>
ProjectionPtr make(int64_t n, int64_t r, uint64_t key, at::TensorOptions options) {
  return std::make_shared<Dense>(kDistribution, n, r, key, options);
}

// For independent entries of variance 1/r and fourth moment kurtosis/r^2 the error is
// (n + kurtosis - 2) / r: kurtosis is 3 for normal and for sparse entries, 1 for signs.
double error_at_kurtosis_3(int64_t n, int64_t r) { return static_cast<double>(n + 1) / r; }
double error_at_kurtosis_1(int64_t n, int64_t r) { return static_cast<double>(n - 1) / r; }

}  // namespace

const ProjectionInfo gaussian_projection = {
    .name = "gaussian",
    .summary = "normal entries of variance 1/r, as in the paper",
    .relative_error = error_at_kurtosis_3,
    .make = make<kernels::Distribution::kNormal>,
};
const ProjectionInfo rademacher_projection = {
    .name = "rademacher",
    .summary = "entries +-1/sqrt(r)",
    .relative_error = error_at_kurtosis_1,
    .make = make<kernels::Distribution::kRademacher>,
};
const ProjectionInfo sparse_projection = {
    .name = "sparse",
    .summary = "entries +-sqrt(3/r) with probability 1/6 each, else 0 (Achlioptas 2003)",
    .relative_error = error_at_kurtosis_3,
    .make = make<kernels::Distribution::kSparse>,
};

}  // namespace compact
