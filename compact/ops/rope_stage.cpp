// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/base/check.h"
#include "compact/codecs/launch.h"
#include "compact/ops/autograd.h"
#include "compact/ops/stages.h"

namespace compact {
namespace {

// What the kernel asks of rows x, from position `offset` on, and of the tables.
void check_rope(const at::Tensor& x, const RopeTables& tables, int64_t heads, int64_t dim,
                int64_t offset, int64_t length) {
  check_like("rope", x, {{"cosines", tables.cos}, {"sines", tables.sin}}, at::kFloat);
  COMPACT_CHECK(x.is_contiguous(), "[rope] rows must be contiguous, are ", x.sizes(),
                " with strides ", x.strides());
  COMPACT_CHECK(tables.cos.dim() == 2 && tables.cos.sizes() == tables.sin.sizes() &&
                    tables.cos.is_contiguous() && tables.sin.is_contiguous(),
                "[rope] cosines and sines must be contiguous [length, dim / 2] alike, are ",
                tables.cos.sizes(), " with strides ", tables.cos.strides(), " and ",
                tables.sin.sizes(), " with strides ", tables.sin.strides());
  COMPACT_CHECK(x.size(-1) >= heads * dim && tables.cos.size(1) == dim / 2 && offset >= 0 &&
                    offset + length <= tables.cos.size(0),
                "[rope] positions up to ", offset + length, " of ", heads, " heads of ", dim,
                " in rows of ", x.size(-1), ", with tables ", tables.cos.sizes());
}

class RopeStage final : public Stage {
 public:
  RopeStage(std::shared_ptr<const RopeTables> tables, int64_t heads, int64_t dim)
      : tables_(std::move(tables)), heads_(heads), dim_(dim) {}

  Needs needs() const override { return {}; }
  // What is not rotated stays where it is.
  Work work(const at::Tensor& input, const at::Tensor&, Weights) const override {
    const auto part = static_cast<double>(heads_ * dim_) / static_cast<double>(input.size(-1));
    return {.bytes = 2 * static_cast<double>(input.nbytes()) * part};
  }

  at::Tensor forward(Forward& f) const override {
    return rotate(std::move(f.input), f.overwrite, false);
  }
  at::Tensor backward(Backward& b) const override {
    const bool own = owned(b.gy);
    at::Tensor gx = rotate(std::move(b.gy), own, true);
    return b.plus_residual(gx);
  }

 private:
  // x [batch, sequence, width]
  at::Tensor rotate(at::Tensor x, bool in_place, bool inverse) const {
    at::Tensor y = in_place && x.is_contiguous() ? x : x.clone(at::MemoryFormat::Contiguous);
    const int64_t width = y.size(-1), length = y.size(-2);
    if (y.numel() == 0) return y;
    check_rope(y, *tables_, heads_, dim_, 0, length);
    backend_of(y).rope({.x = y.data_ptr(),
                        .cos = static_cast<const float*>(tables_->cos.const_data_ptr()),
                        .sin = static_cast<const float*>(tables_->sin.const_data_ptr()),
                        .tokens = y.numel() / width,
                        .length = length,
                        .heads = heads_,
                        .dim = dim_,
                        .row_stride = width,
                        .inverse = inverse,
                        .type = type_of(y)},
                       launch_for(y));
    return y;
  }

  std::shared_ptr<const RopeTables> tables_;
  int64_t heads_, dim_;
};

}  // namespace

RopeTables RopeTables::make(int64_t length, int64_t dim, double base, at::Device device) {
  if (device.is_meta()) {  // plans are made of many models
    const auto f32 = at::TensorOptions().device(device).dtype(at::kFloat);
    return {at::empty({length, dim / 2}, f32), at::empty({length, dim / 2}, f32)};
  }
  // In the order of Hugging Face: f32 inverse frequencies, f32 products.
  const at::Tensor exponent =
      at::arange(0, dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(dim);
  const at::Tensor inverse_frequency = at::pow(base, exponent).reciprocal();
  const at::Tensor angle =
      at::arange(length, at::kLong).to(at::kFloat).unsqueeze(1) * inverse_frequency.unsqueeze(0);
  return {angle.cos().to(device), angle.sin().to(device)};
}

void rope_in_place(at::Tensor x, const RopeTables& tables, int64_t heads, int64_t dim,
                   int64_t offset, bool inverse) {
  const int64_t half = dim / 2;
  COMPACT_CHECK(x.dim() == 2, "[rope] needs rows [tokens, width], not ", x.sizes());
  check_rope(x, tables, heads, dim, offset, x.size(0));
  backend_of(x).rope({.x = x.data_ptr(),
                      .cos = static_cast<const float*>(tables.cos.const_data_ptr()) + offset * half,
                      .sin = static_cast<const float*>(tables.sin.const_data_ptr()) + offset * half,
                      .tokens = x.size(0),
                      .length = x.size(0),
                      .heads = heads,
                      .dim = dim,
                      .row_stride = x.size(1),
                      .inverse = inverse,
                      .type = type_of(x)},
                     launch_for(x));
}

std::shared_ptr<const Stage> rope_stage(std::shared_ptr<const RopeTables> tables, int64_t heads,
                                        int64_t dim) {
  return std::make_shared<RopeStage>(std::move(tables), heads, dim);
}

}  // namespace compact
