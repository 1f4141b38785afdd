// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <utility>

#include "compact/base/check.h"
#include "compact/codecs/launch.h"
#include "compact/ops/autograd/autograd.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

class GegluStage final : public Stage {
 public:
  explicit GegluStage(int64_t m) : m_(m) {}

  Needs needs() const override { return {.input = true}; }
  bool by_token() const override { return true; }

  at::Tensor forward(Forward& f) const override {
    const auto [gate, up] = halves(f.input);
    at::Tensor activation = at::gelu(gate, kForm);
    if (!f.want_side) return activation.mul_(up);
    f.side = activation;
    return activation.mul(up);
  }

  at::Tensor backward(Backward& b) const override {
    const at::Tensor x = std::move(b.input);
    const at::Tensor gx = b.consume && owned(x) ? x : at::empty_like(x);
    const auto [gate, up] = halves(x);
    const auto [ggate, gup] = halves(gx);
    check_like("geglu", x, {{"gradient", b.gy}, {"gelu", b.side}});
    at::Tensor for_up = b.side.defined() ? b.side.mul(b.gy) : at::gelu(gate, kForm).mul_(b.gy);
    b.side = at::Tensor();
    at::Tensor gy = std::move(b.gy);
    gy = owned(gy) ? gy.mul_(up) : gy.mul(up);
    gup.copy_(for_up);
    for_up = at::Tensor();
    at::Tensor out = ggate;
    at::gelu_backward_out(out, gy, gate, kForm);
    gy = at::Tensor();
    return b.plus_residual(gx);
  }

 private:
  static constexpr const char* kForm = "tanh";

  std::pair<at::Tensor, at::Tensor> halves(const at::Tensor& x) const {
    COMPACT_CHECK(x.size(-1) == 2 * m_, "[geglu] the product of gate and up must be ", 2 * m_,
                  " wide, is ", x.size(-1));
    return {x.narrow(-1, 0, m_), x.narrow(-1, m_, m_)};
  }

  int64_t m_;
};

}  // namespace

std::shared_ptr<const Stage> geglu_stage(int64_t m) { return std::make_shared<GegluStage>(m); }

}  // namespace compact
