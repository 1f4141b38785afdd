// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>

#include "compact/base/check.h"
#include "compact/ops/functions/attention.h"
#include "compact/ops/functions/efficient_attention.h"
#include "compact/ops/functions/heads.h"
#include "compact/ops/functions/masked_attention.h"
#include "compact/ops/functions/range_attention.h"
#include "compact/ops/functions/token_cache.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

class AttentionStage final : public Stage {
 public:
  AttentionStage(int64_t heads, int64_t kv_heads, int64_t dim, const AttentionOptions& options)
      : heads_(heads),
        kv_heads_(kv_heads),
        dim_(dim),
        options_(options),
        plain_(options.window == 0 && options.softcap == 0),
        causal_(plain_ && options.causal && !options.padded && options.dropout == 0),
        flash_(options.choice.kernel == AttentionKernel::kCpuFlash),
        fused_(causal_ ||
               (plain_ && (flash_ || options.choice.kernel == AttentionKernel::kCudaEfficient))) {}

  Needs needs() const override { return {.input = true, .output = fused_}; }
  // In chunks scores are read and written about six times, in f32.
  Work work(const at::Tensor& input, const at::Tensor& output, Weights) const override {
    const int64_t length = input.size(1);
    const auto bytes = static_cast<double>(input.nbytes() + output.nbytes());
    if (fused_) {
      const auto scores = static_cast<double>(output.numel() * length);
      return {.products = (options_.causal ? 2 : 4) * scores, .bytes = bytes};
    }
    const bool narrow = options_.window > 0 && options_.window < length;
    // A window's chunks read twice as many keys.
    const auto keys = static_cast<double>(narrow ? std::min(length, 2 * options_.window) : length),
               scores = static_cast<double>(input.size(0) * heads_ * length) * keys;
    return {.products = 4 * static_cast<double>(output.numel()) * keys,
            .bytes = bytes + 6 * scores * sizeof(float)};
  }

  int64_t variant() const override { return options_.window; }

  at::Tensor forward(Forward& f) const override {
    COMPACT_CHECK(!f.pass.cache || options_.causal,
                  "[attention] only causal attention can continue a cache of tokens");
    COMPACT_CHECK(
        causal_ || !f.pass.ranges.defined(),
        "[attention] ranges are for causal attention without padding at the end, dropout, "
        "window or capped scores");
    AttentionResult r = attend(f);
    if (f.want_extras) f.extras = std::move(r.extras);
    return r.out.transpose(1, 2).flatten(2);
  }

  at::Tensor backward(Backward& b) const override {
    const auto [q, k, v] = split(b.input);
    if (fused_ && !b.pass.ranges.defined()) {
      const AttentionGradients g = gradients(b, q, k, v);
      b.gy = at::Tensor();
      b.output = at::Tensor();
      const at::Tensor gx = b.consume ? b.input : at::empty_like(b.input);
      const auto [gq, gk, gv] = split(gx);
      gq.copy_(g.gq);
      gk.copy_(sum_groups(g.gk, kv_heads_));
      gv.copy_(sum_groups(g.gv, kv_heads_));
      return b.residual.defined() ? gx + b.residual : gx;
    }
    const at::Tensor gx = b.consume ? b.input : at::empty_like(b.input);
    const auto [gq, gk, gv] = split(gx);
    if (fused_) {
      range_attention_backward(by_head(b.gy, dim_), q, k, v, by_head(b.output, dim_), *b.extras,
                               b.pass.ranges, options_.scale, gq, gk, gv);
    } else if (kv_heads_ == heads_) {
      masked_attention_backward(by_head(b.gy, dim_), q, k, v, how(b.pass), gq, gk, gv);
    } else {
      const at::Tensor keys = repeat_groups(k, heads_), values = repeat_groups(v, heads_);
      const at::Tensor gkeys = at::empty(q.sizes(), q.options()),
                       gvalues = at::empty(q.sizes(), q.options());
      masked_attention_backward(by_head(b.gy, dim_), q, keys, values, how(b.pass), gq, gkeys,
                                gvalues);
      gk.copy_(sum_groups(gkeys, kv_heads_));
      gv.copy_(sum_groups(gvalues, kv_heads_));
    }
    b.gy = at::Tensor();
    b.output = at::Tensor();
    return b.residual.defined() ? gx + b.residual : gx;
  }

 private:
  // [batch, heads, sequence, dim].
  AttentionResult attend(const Forward& f) const {
    const auto [q, k, v] = split(f.input);
    if (f.pass.cache && plain_) {
      return {attention_of_new_tokens(q, k, v, *f.pass.cache, this, options_.scale), {}};
    }
    if (causal_) {
      return f.pass.ranges.defined() ? range_attention(q, k, v, f.pass.ranges, options_.scale)
                                     : attention_forward(q, k, v, options_.scale);
    }
    const auto [all_keys, all_values] =
        f.pass.cache ? f.pass.cache->append(this, k, v) : std::pair<at::Tensor, at::Tensor>(k, v);
    const at::Tensor keys = repeat_groups(all_keys, heads_),
                     values = repeat_groups(all_values, heads_);
    if (!fused_) return {masked_attention(q, keys, values, how(f.pass)), {}};
    return flash_ ? padded_flash_attention(q, keys, values, how(f.pass))
                  : efficient_attention(q, keys, values, how(f.pass), options_.choice.width,
                                        f.want_extras);
  }
  // The gradients of a fused kernel.
  AttentionGradients gradients(const Backward& b, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v) const {
    const at::Tensor gout = by_head(b.gy, dim_), out = by_head(b.output, dim_);
    if (causal_) return attention_backward(gout, q, k, v, out, *b.extras, options_.scale);
    const at::Tensor keys = repeat_groups(k, heads_), values = repeat_groups(v, heads_);
    return flash_
               ? padded_flash_attention_backward(gout, q, keys, values, out, *b.extras, how(b.pass))
               : efficient_attention_backward(gout, q, keys, values, out, *b.extras, how(b.pass),
                                              options_.choice.width);
  }
  MaskedAttention how(const Pass& pass) const {
    return {.lengths = pass.lengths,
            .dropout = pass.training ? options_.dropout : 0,
            .key = pass.noise,
            .causal = options_.causal,
            .scale = options_.scale,
            .window = options_.window,
            .softcap = options_.softcap};
  }
  std::tuple<at::Tensor, at::Tensor, at::Tensor> split(const at::Tensor& x) const {
    return split_heads(x, heads_, kv_heads_, dim_);
  }

  int64_t heads_, kv_heads_, dim_;
  AttentionOptions options_;
  bool plain_, causal_, flash_, fused_;  // causal_: by the kernel for causal attention alone
};

}  // namespace

std::shared_ptr<const Stage> attention_stage(int64_t heads, int64_t kv_heads, int64_t dim,
                                             const AttentionOptions& options) {
  return std::make_shared<AttentionStage>(heads, kv_heads, dim, options);
}

}  // namespace compact
