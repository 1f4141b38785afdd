// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/base/check.h"
#include "compact/codecs/launch.h"
#include "compact/ops/autograd/autograd.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

at::Tensor half_of(const at::Tensor& gate_up) {
  auto sizes = gate_up.sizes().vec();
  sizes.back() /= 2;
  return at::empty(sizes, gate_up.options());
}

class SwiGluStage final : public Stage {
 public:
  explicit SwiGluStage(int64_t m) : m_(m) {}

  Needs needs() const override { return {.input = true}; }
  bool by_token() const override { return true; }

  at::Tensor forward(Forward& f) const override {
    const at::Tensor x = f.input.contiguous();
    COMPACT_CHECK(x.size(-1) == 2 * m_, "[swiglu] the product of gate and up must be ", 2 * m_,
                  " wide, is ", x.size(-1));
    at::Tensor product = half_of(x);
    if (f.want_side) f.side = at::empty_like(product);
    const int64_t m = product.size(-1);
    backend_of(x).swiglu({.gate_up = x.const_data_ptr(),
                          .silu = f.side.defined() ? f.side.data_ptr() : nullptr,
                          .product = product.data_ptr(),
                          .rows = m ? product.numel() / m : 0,
                          .m = m,
                          .type = type_of(x)},
                         launch_for(x));
    return product;
  }

  at::Tensor backward(Backward& b) const override {
    at::Tensor x = std::move(b.input);
    // The kernel needs contiguous rows.
    if (!x.is_contiguous()) x = x.contiguous(), b.consume = true;
    const at::Tensor gy = b.gy.contiguous();
    check_like("swiglu", x, {{"gradient", gy}, {"silu", b.side}});
    b.gy = at::Tensor();
    const at::Tensor gx = b.consume && owned(x) ? x : at::empty_like(x);
    const int64_t m = x.size(-1) / 2;
    backend_of(x).swiglu_backward({.gproduct = gy.const_data_ptr(),
                                   .gate_up = x.const_data_ptr(),
                                   .silu = b.side.defined() ? b.side.const_data_ptr() : nullptr,
                                   .ggate_up = gx.data_ptr(),
                                   .rows = m ? gy.numel() / m : 0,
                                   .m = m,
                                   .type = type_of(x)},
                                  launch_for(x));
    return b.plus_residual(gx);
  }

 private:
  int64_t m_;
};

}  // namespace

std::shared_ptr<const Stage> swiglu_stage(int64_t m) { return std::make_shared<SwiGluStage>(m); }

}  // namespace compact
