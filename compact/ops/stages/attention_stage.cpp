// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/codecs/meta_device.h"
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
  Work work(const at::Tensor& input, const at::Tensor& output, Weights,
            const Pass& pass) const override {
    const int64_t length = input.size(1);
    // A window's chunks read twice as many keys.
    const int64_t most =
        options_.window > 0 ? 2 * options_.window : std::numeric_limits<int>::max();
    const auto scores = static_cast<double>(pass.ranges.defined()
                                                ? scores_of_ranges(pass.ranges, most)
                                                : input.size(0) * length * std::min(length, most));
    const auto bytes = static_cast<double>(input.nbytes() + output.nbytes()),
               products = static_cast<double>(output.size(-1)) * scores;
    if (fused_) return {.products = (options_.causal ? 2 : 4) * products, .bytes = bytes};
    return {.products = 4 * products,
            .bytes = bytes + 6 * static_cast<double>(heads_) * scores * sizeof(float)};
  }

  int64_t variant() const override { return options_.window; }

  at::Tensor forward(Forward& f) const override {
    COMPACT_CHECK(!f.pass.cache || options_.causal,
                  "[attention] only causal attention can continue a cache of tokens");
    COMPACT_CHECK((options_.causal && !options_.padded) || !f.pass.ranges.defined(),
                  "[attention] ranges are for causal attention without padding at the end");
    AttentionResult r = attend(f);
    if (f.want_extras) f.extras = std::move(r.extras);
    return r.out.transpose(1, 2).flatten(2);
  }

  at::Tensor backward(Backward& b) const override {
    const auto [q, k, v] = split(b.input);
    if (causal_ && !b.pass.ranges.defined() && b.consume && heads_at_once(q) < kv_heads_) {
      // The input's memory takes the gradients.
      by_heads({by_head(b.gy, dim_), q, k, v, by_head(b.output, dim_), *b.extras, 0, q, k, v},
               how(b.pass));
      b.gy = b.output = at::Tensor();
      return b.residual.defined() ? b.input + b.residual : b.input;
    }
    if (fused_ && !b.pass.ranges.defined()) {
      const AttentionGradients g =
          gradients(by_head(b.gy, dim_), q, k, v, by_head(b.output, dim_), *b.extras, how(b.pass));
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
    RangeBackward all{by_head(b.gy, dim_), q, k, v, {}, {}, 0, gq, gk, gv};
    if (!b.pass.ranges.defined()) {
      masked_backward(all, how(b.pass));
    } else {
      if (fused_) all.out = by_head(b.output, dim_), all.extras = *b.extras;
      range_attention_backward(all, b.pass.ranges, [&](const RangeBackward& one) {
        const MaskedAttention own = how(b.pass, one.number);
        fused_ ? fused_backward(one, own) : masked_backward(one, own);
      });
    }
    all = {};
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
    if (f.pass.ranges.defined()) {
      return range_attention(q, k, v, f.pass.ranges,
                             [&](const at::Tensor& queries, const at::Tensor& keys,
                                 const at::Tensor& values, uint64_t number) {
                               return attend_to(queries, keys, values, how(f.pass, number),
                                                f.want_extras);
                             });
    }
    const auto [keys, values] =
        f.pass.cache ? f.pass.cache->append(this, k, v) : std::pair<at::Tensor, at::Tensor>(k, v);
    return attend_to(q, keys, values, how(f.pass), f.want_extras);
  }
  // Each row is one sequence.
  AttentionResult attend_to(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const MaskedAttention& how, bool want_extras) const {
    if (causal_) return attention_forward(q, k, v, options_.scale);
    const at::Tensor keys = repeat_groups(k, heads_), values = repeat_groups(v, heads_);
    if (!fused_) return {masked_attention(q, keys, values, how), {}};
    return flash_ ? padded_flash_attention(q, keys, values, how)
                  : efficient_attention(q, keys, values, how, options_.choice.width, want_extras);
  }
  // The gradients of a fused kernel.
  AttentionGradients gradients(const at::Tensor& gout, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const at::Tensor& out, const Tensors& extras,
                               const MaskedAttention& how) const {
    if (causal_) return attention_backward(gout, q, k, v, out, extras, options_.scale);
    const at::Tensor keys = repeat_groups(k, heads_), values = repeat_groups(v, heads_);
    return flash_ ? padded_flash_attention_backward(gout, q, keys, values, out, extras, how)
                  : efficient_attention_backward(gout, q, keys, values, out, extras, how,
                                                 options_.choice.width);
  }
  // How many key heads, with their queries, have gradients of at most gradient_bytes; at least one,
  // and on a CPU, whose kernel has one thread for a head, as many as keep its threads busy.
  int64_t heads_at_once(const at::Tensor& q) const {
    const int64_t queries = heads_ / kv_heads_,
                  bytes = q.size(0) * (queries + 2) * q.size(2) * dim_ * q.element_size();
    int64_t least = 1;
    if (device_type_of(q) == c10::kCPU) {
      const int64_t busy = q.size(0) * queries;
      least = busy ? (at::get_num_threads() + busy - 1) / busy : 1;
    }
    return bytes ? std::max(options_.gradient_bytes / bytes, least) : kv_heads_;
  }
  void by_heads(const RangeBackward& r, const MaskedAttention& how) const {
    const int64_t queries = heads_ / kv_heads_, most = heads_at_once(r.q);
    for (int64_t first = 0; first < kv_heads_; first += most) {
      const int64_t count = std::min(most, kv_heads_ - first);
      const auto some = [&](const at::Tensor& t, int64_t each) {
        return t.narrow(1, first * each, count * each);
      };
      RangeBackward one{
          some(r.gout, queries), some(r.q, queries), some(r.k, 1), some(r.v, 1),
          some(r.out, queries),  r.extras,           r.number,     some(r.gq, queries),
          some(r.gk, 1),         some(r.gv, 1)};
      // The logsumexp of each query head; what follows it is of all.
      if (!one.extras.empty()) one.extras[0] = some(one.extras[0], queries).contiguous();
      fused_backward(one, how);
    }
  }
  void fused_backward(const RangeBackward& r, const MaskedAttention& how) const {
    const AttentionGradients g = gradients(r.gout, r.q, r.k, r.v, r.out, r.extras, how);
    r.gq.copy_(g.gq);
    r.gk.copy_(sum_groups(g.gk, r.k.size(1)));
    r.gv.copy_(sum_groups(g.gv, r.k.size(1)));
  }
  void masked_backward(const RangeBackward& r, const MaskedAttention& how) const {
    if (kv_heads_ == heads_) {
      return masked_attention_backward(r.gout, r.q, r.k, r.v, how, r.gq, r.gk, r.gv);
    }
    const at::Tensor keys = repeat_groups(r.k, heads_), values = repeat_groups(r.v, heads_);
    const at::Tensor gkeys = at::empty(r.q.sizes(), r.q.options()),
                     gvalues = at::empty(r.q.sizes(), r.q.options());
    masked_attention_backward(r.gout, r.q, keys, values, how, r.gq, gkeys, gvalues);
    r.gk.copy_(sum_groups(gkeys, kv_heads_));
    r.gv.copy_(sum_groups(gvalues, kv_heads_));
  }
  // The same for a range, whose dropout is its own.
  MaskedAttention how(const Pass& pass, uint64_t number) const {
    MaskedAttention own = how(pass);
    own.key = derive(own.key, number);
    return own;
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
