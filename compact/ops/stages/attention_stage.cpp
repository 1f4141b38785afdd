// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "compact/ops/functions/attention.h"
#include "compact/ops/functions/heads.h"
#include "compact/ops/functions/range_attention.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

class AttentionStage final : public Stage {
 public:
  AttentionStage(int64_t heads, int64_t kv_heads, int64_t dim, std::optional<double> scale)
      : heads_(heads), kv_heads_(kv_heads), dim_(dim), scale_(scale) {}

  Needs needs() const override { return {.input = true, .output = true}; }
  // Half of the scores, as attention is causal.
  Work work(const at::Tensor& input, const at::Tensor& output, Weights) const override {
    return {.products = 2.0 * static_cast<double>(output.numel() * input.size(1)),
            .bytes = static_cast<double>(input.nbytes() + output.nbytes())};
  }

  at::Tensor forward(Forward& f) const override {
    const auto [q, k, v] = split(f.input);
    if (f.pass.cache) {
      return attention_of_new_tokens(q, k, v, *f.pass.cache, this, scale_)
          .transpose(1, 2)
          .flatten(2);
    }
    AttentionResult r = f.pass.ranges.defined() ? range_attention(q, k, v, f.pass.ranges, scale_)
                                                : attention_forward(q, k, v, scale_);
    if (f.want_extras) f.extras = std::move(r.extras);
    return r.out.transpose(1, 2).flatten(2);
  }

  at::Tensor backward(Backward& b) const override {
    const auto [q, k, v] = split(b.input);
    if (b.pass.ranges.defined()) return backward_of_ranges(b);
    AttentionGradients g = attention_backward(by_head(b.gy, dim_), q, k, v, by_head(b.output, dim_),
                                              *b.extras, scale_);
    b.gy = at::Tensor();
    b.output = at::Tensor();
    const at::Tensor gx = b.consume ? b.input : at::empty_like(b.input);
    const auto [gq, gk, gv] = split(gx);
    gq.copy_(g.gq);
    gk.copy_(g.gk);
    gv.copy_(g.gv);
    return b.residual.defined() ? gx + b.residual : gx;
  }

 private:
  at::Tensor backward_of_ranges(Backward& b) const {
    const at::Tensor gx = b.consume ? b.input : at::empty_like(b.input);
    const auto [q, k, v] = split(b.input);
    const auto [gq, gk, gv] = split(gx);
    range_attention_backward(by_head(b.gy, dim_), q, k, v, by_head(b.output, dim_), *b.extras,
                             b.pass.ranges, scale_, gq, gk, gv);
    b.gy = at::Tensor();
    b.output = at::Tensor();
    return b.residual.defined() ? gx + b.residual : gx;
  }
  std::tuple<at::Tensor, at::Tensor, at::Tensor> split(const at::Tensor& x) const {
    return split_heads(x, heads_, kv_heads_, dim_);
  }

  int64_t heads_, kv_heads_, dim_;
  std::optional<double> scale_;
};

}  // namespace

std::shared_ptr<const Stage> attention_stage(int64_t heads, int64_t kv_heads, int64_t dim,
                                             const AttentionOptions& options) {
  if (options.dropout > 0 || options.window > 0 || options.softcap > 0) {
    return masked_attention_stage(heads, dim,
                                  {.dropout = options.dropout,
                                   .kv_heads = kv_heads,
                                   .causal = true,
                                   .scale = options.scale,
                                   .window = options.window,
                                   .softcap = options.softcap,
                                   .choice = options.choice});
  }
  return std::make_shared<AttentionStage>(heads, kv_heads, dim, options.scale);
}

}  // namespace compact
