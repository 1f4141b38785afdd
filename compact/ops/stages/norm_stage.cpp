// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <array>
#include <numeric>

#include "compact/base/check.h"
#include "compact/codecs/launch.h"
#include "compact/codecs/meta_device.h"
#include "compact/ops/autograd/autograd.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

// A weight has the activations' type or f32.
void check_weight(const at::Tensor& x, const at::Tensor& weight, int64_t n) {
  check_like("rms norm", x, {{"weight", weight}},
             weight.scalar_type() == at::kFloat ? at::kFloat : x.scalar_type());
  COMPACT_CHECK(weight.is_contiguous() && weight.numel() == n,
                "[rms norm] weight must be contiguous [", n, "], is ", weight.sizes());
}

// The factor of rows: the weight itself, or, with an offset, their sum in f32.
at::Tensor factor_of(const at::Tensor& weight, double offset) {
  return offset == 0 ? weight : weight.to(at::kFloat).add(offset);
}

// A tensor for the gradient of such a factor, and that of its weight.
at::Tensor gradient_like(const at::Tensor& factor, bool wanted) {
  return wanted ? at::empty_like(factor) : at::Tensor();
}
at::Tensor as_weight(const at::Tensor& gfactor, const at::Tensor& weight) {
  return gfactor.defined() ? gfactor.to(weight.scalar_type()) : gfactor;
}

// Writes the norm of x [.., n], contiguous, to y of its shape, and rstd, f32 [rows].
void normalize(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& y,
               const at::Tensor& rstd) {
  backend_of(x).rms_norm({.x = x.const_data_ptr(),
                          .weight = weight.const_data_ptr(),
                          .y = y.data_ptr(),
                          .rstd = static_cast<float*>(rstd.data_ptr()),
                          .rows = rstd.numel(),
                          .n = x.size(-1),
                          .eps = static_cast<float>(eps),
                          .type = type_of(x),
                          .weight_type = type_of(weight)},
                         launch_for(x));
}

// All contiguous; residual and gweight undefined where not wanted; gx may be gy.
void normalize_backward(const at::Tensor& gy, const at::Tensor& x, const at::Tensor& weight,
                        const at::Tensor& rstd, const at::Tensor& residual, const at::Tensor& gx,
                        const at::Tensor& gweight) {
  const int64_t n = x.size(-1), rows = rstd.numel();
  const bool gpu = device_type_of(x) == at::kCUDA;
  const int64_t parts_count =
      kernels::rms_norm_parts(gpu ? kernels::Device::kCuda : kernels::Device::kCpu, rows, n);
  at::Tensor parts;
  if (gweight.defined()) parts = at::empty({parts_count, n}, x.options().dtype(at::kFloat));
  backend_of(x).rms_norm_backward(
      {.gy = gy.const_data_ptr(),
       .x = x.const_data_ptr(),
       .weight = weight.const_data_ptr(),
       .rstd = static_cast<const float*>(rstd.const_data_ptr()),
       .residual = residual.defined() ? residual.const_data_ptr() : nullptr,
       .gx = gx.data_ptr(),
       .gweight = gweight.defined() ? gweight.data_ptr() : nullptr,
       .parts = parts.defined() ? static_cast<float*>(parts.data_ptr()) : nullptr,
       .rows = rows,
       .n = n,
       .parts_count = parts_count,
       .type = type_of(x),
       .weight_type = type_of(weight)},
      launch_for(x));
}

class RmsNormStage final : public Stage {
 public:
  RmsNormStage(double eps, double offset) : eps_(eps), offset_(offset) {}

  Needs needs() const override { return {.input = true}; }
  bool by_token() const override { return true; }
  bool leaves_extras() const override { return true; }
  int64_t reads_rows(int64_t width) const override { return width; }
  int parameters() const override { return 1; }

  at::Tensor forward(Forward& f) const override {
    const at::Tensor x = f.input.contiguous(), weight = f.weights[0].value;
    const int64_t n = x.size(-1);
    check_weight(x, weight, n);
    at::Tensor y = at::empty_like(x);
    const at::Tensor rstd = at::empty({n ? x.numel() / n : 0}, x.options().dtype(at::kFloat));
    normalize(x, factor_of(weight, offset_), eps_, y, rstd);
    if (f.want_extras) f.extras = {rstd};
    return f.pass.products ? y.to(*f.pass.products) : y;
  }

  at::Tensor backward(Backward& b) const override {
    const at::Tensor x = b.input.contiguous(), weight = b.weights[0].value,
                     gy = b.pass.as(b.gy, x.scalar_type()).contiguous();
    check_weight(x, weight, x.size(-1));
    check_like("rms norm", x, {{"gradient", gy}, {"residual", b.residual}});
    b.gy = at::Tensor();
    at::Tensor residual = b.residual.defined() ? b.residual.contiguous() : at::Tensor();
    b.residual = at::Tensor();
    const at::Tensor gx = owned(residual) ? residual : owned(gy) ? gy : at::empty_like(x);
    const at::Tensor factor = factor_of(weight, offset_),
                     gfactor = gradient_like(factor, b.want_parameters[0]);
    normalize_backward(gy, x, factor, (*b.extras)[0], residual, gx, gfactor);
    b.gparameters[0] = as_weight(gfactor, weight);
    return b.want_input ? gx : at::Tensor();
  }

 private:
  double eps_, offset_;
};

class HeadNormStage final : public Stage {
 public:
  HeadNormStage(double eps, std::array<int64_t, 2> heads, std::array<int64_t, 2> dims,
                double offset)
      : eps_(eps), offset_(offset), heads_(heads), dims_(dims) {}

  Needs needs() const override { return {.input = true}; }
  bool by_token() const override { return true; }
  bool leaves_extras() const override { return true; }
  int64_t reads_rows(int64_t) const override { return std::gcd(dims_[0], dims_[1]); }
  int parameters() const override { return 2; }

  at::Tensor forward(Forward& f) const override {
    const at::Tensor& x = f.input;
    check(x, f.weights);
    at::Tensor y = at::empty(x.sizes(), x.options());
    f.extras.clear();
    for (int part = 0; part < 2; ++part) {
      const at::Tensor rows = rows_of(x, part), normed = at::empty_like(rows);
      const at::Tensor rstd = at::empty({rows.size(0)}, x.options().dtype(at::kFloat));
      normalize(rows, factor_of(f.weights[part].value, offset_), eps_, normed, rstd);
      part_of(y, part).copy_(normed.view(part_of(y, part).sizes()));
      if (f.want_extras) f.extras.push_back(rstd);
    }
    part_of(y, 2).copy_(part_of(x, 2));
    return y;
  }

  at::Tensor backward(Backward& b) const override {
    check(b.input, b.weights);
    check_like("rms norm", b.input, {{"gradient", b.gy}});
    at::Tensor gx = owned(b.gy) ? b.gy : b.gy.clone(at::MemoryFormat::Contiguous);
    b.gy = at::Tensor();
    for (int part = 0; part < 2; ++part) {
      const at::Tensor& weight = b.weights[part].value;
      const at::Tensor x = rows_of(b.input, part), g = rows_of(gx, part),
                       factor = factor_of(weight, offset_),
                       gfactor = gradient_like(factor, b.want_parameters[part]);
      normalize_backward(g, x, factor, (*b.extras)[part], {}, g, gfactor);
      b.gparameters[part] = as_weight(gfactor, weight);
      // The rows of one token are those of gx itself, where ATen refuses a copy.
      if (!g.is_alias_of(gx)) part_of(gx, part).copy_(g.view(part_of(gx, part).sizes()));
    }
    return b.want_input ? b.plus_residual(std::move(gx)) : at::Tensor();
  }

 private:
  void check(const at::Tensor& x, Weights weights) const {
    for (int part = 0; part < 2; ++part) check_weight(x, weights[part].value, dims_[part]);
    COMPACT_CHECK(x.size(-1) >= heads_[0] * dims_[0] + heads_[1] * dims_[1], "[rms norm] ",
                  heads_[0], " and ", heads_[1], " heads of ", dims_[0],
                  dims_[1] == dims_[0] ? "" : cat(" and ", dims_[1]), " are more than rows of ",
                  x.size(-1));
  }
  // Part 0 is queries, 1 keys, 2 what follows them.
  at::Tensor part_of(const at::Tensor& x, int part) const {
    const int64_t q = heads_[0] * dims_[0], k = heads_[1] * dims_[1];
    if (part == 2) return x.narrow(-1, q + k, x.size(-1) - q - k);
    return part == 0 ? x.narrow(-1, 0, q) : x.narrow(-1, q, k);
  }
  // [tokens * heads, its dim], contiguous: a copy unless one token is all.
  at::Tensor rows_of(const at::Tensor& x, int part) const {
    return part_of(x, part).contiguous().view({x.numel() / x.size(-1) * heads_[part], dims_[part]});
  }

  double eps_, offset_;
  std::array<int64_t, 2> heads_, dims_;
};

}  // namespace

std::shared_ptr<const Stage> rms_norm_stage(double eps, double offset) {
  return std::make_shared<RmsNormStage>(eps, offset);
}

std::shared_ptr<const Stage> head_norm_stage(double eps, int64_t q_heads, int64_t k_heads,
                                             int64_t dim, double offset, int64_t k_dim) {
  return std::make_shared<HeadNormStage>(eps, std::array{q_heads, k_heads},
                                         std::array{dim, k_dim > 0 ? k_dim : dim}, offset);
}

}  // namespace compact
