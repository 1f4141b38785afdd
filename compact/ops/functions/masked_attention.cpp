// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/masked_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/ops/functions/attention_heads_impl.h"
#include "compact/ops/functions/dropout.h"

namespace compact {
namespace {

constexpr int64_t kMostScores = int64_t{1} << 22;  // of a chunk: 16 MiB in f32

// Some queries of some samples, and the keys that they attend to.
struct Chunk {
  int64_t sample = 0, samples = 0, query = 0, queries = 0, key = 0, keys = 0;
  uint64_t number = 0;

  at::Tensor samples_of(const at::Tensor& t) const { return t.narrow(0, sample, samples); }
  at::Tensor queries_of(const at::Tensor& t) const {
    return samples_of(t).narrow(2, query, queries);
  }
  at::Tensor keys_of(const at::Tensor& t) const { return samples_of(t).narrow(2, key, keys); }
};

template <class F>
void for_chunks(const at::Tensor& q, const at::Tensor& k, const MaskedAttention& how, F f) {
  const int64_t batch = q.size(0), length = q.size(2), all = k.size(2), before = all - length;
  const bool narrow = how.window > 0 && how.window < all;
  // A chunk of `window` queries reads up to twice `window` keys.
  const int64_t row = q.size(1) * (narrow ? std::min(all, 2 * how.window) : all),
                most = narrow ? std::min(length, how.window) : length;
  const int64_t samples = std::clamp<int64_t>(kMostScores / (row * most), 1, batch);
  const int64_t queries = std::clamp<int64_t>(kMostScores / (samples * row), 1, most);
  Chunk c;
  for (c.sample = 0; c.sample < batch; c.sample += samples) {
    c.samples = std::min(samples, batch - c.sample);
    for (c.query = 0; c.query < length; c.query += queries, ++c.number) {
      c.queries = std::min(queries, length - c.query);
      c.key = narrow ? std::max<int64_t>(0, before + c.query - how.window + 1) : 0;
      c.keys = (narrow ? before + c.query + c.queries : all) - c.key;
      f(c);
    }
  }
}

// A tensor for f32 scores: a number would become a tensor of the CPU, unseen by plans.
at::Tensor number(double value, const at::Tensor& q) {
  return at::full({}, value, q.options().dtype(at::kFloat));
}
at::Tensor factor_of(const at::Tensor& q, const MaskedAttention& how) {
  return number(scale_of(q.size(3), how.scale), q);
}

// f32 [samples, heads, queries, keys]. Where scores are capped, *slope becomes the derivative of
// the cap, unless it is null.
at::Tensor probabilities(const at::Tensor& q, const at::Tensor& k, const MaskedAttention& how,
                         const Chunk& c, at::Tensor* slope = nullptr) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  at::Tensor scores =
      c.queries_of(q).matmul(c.keys_of(k).transpose(2, 3)).to(at::kFloat).mul_(factor_of(q, how));
  if (how.softcap > 0) {
    const at::Tensor cap = number(how.softcap, q);
    scores.div_(cap).tanh_();
    if (slope) *slope = at::addcmul(number(1, q), scores, scores, -1);
    scores.mul_(cap);
  }
  if (how.lengths.defined()) {
    const at::Tensor place = at::arange(c.key, c.key + c.keys, how.lengths.options());
    const at::Tensor padding = place.ge(c.samples_of(how.lengths).unsqueeze(1));
    scores.masked_fill_(padding.unsqueeze(1).unsqueeze(1), kNever);
  }
  if (how.causal) {
    const auto places = k.options().dtype(at::kLong);
    const int64_t first = k.size(2) - q.size(2) + c.query;
    const at::Tensor place = at::arange(c.key, c.key + c.keys, places),
                     query = at::arange(first, first + c.queries, places).unsqueeze(1);
    scores.masked_fill_(place.gt(query), kNever);
    if (how.window > 0) scores.masked_fill_(place.le(query.sub(how.window)), kNever);
    if (how.window > 0 && how.lengths.defined()) {
      // Padding far after a sample attends to nothing: zeros, as in torch's own attention.
      const at::Tensor none =
          query.sub(how.window).ge(c.samples_of(how.lengths).view({-1, 1, 1, 1}) - 1);
      return at::_softmax(scores, -1, false).masked_fill_(none, 0);
    }
  }
  return at::_softmax(scores, -1, false);
}

}  // namespace

void check_masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const MaskedAttention& how) {
  const int64_t before = q.dim() == 4 && k.dim() == 4 ? k.size(2) - q.size(2) : 0;
  auto sizes = q.sizes().vec();
  if (how.causal && before > 0) sizes[2] += before;
  COMPACT_CHECK(q.dim() == 4 && k.sizes() == sizes && v.sizes() == sizes && q.numel() > 0,
                "[attention] q, k, v must be [batch, heads, sequence, dim] alike, are ", q.sizes(),
                ", ", k.sizes(), ", ", v.sizes());
  COMPACT_CHECK(how.window == 0 || (how.window > 0 && how.causal),
                "[attention] only causal attention has a window, of at least 1, is ", how.window);
  COMPACT_CHECK(!how.lengths.defined() || (how.lengths.scalar_type() == at::kLong &&
                                           how.lengths.sizes() == at::IntArrayRef{q.size(0)}),
                "[attention] lengths must be int64 [", q.size(0), "]");
}

at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const MaskedAttention& how) {
  check_masked_attention(q, k, v, how);
  const at::Tensor out =
      at::empty({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options()).transpose(1, 2);
  for_chunks(q, k, how, [&](const Chunk& c) {
    at::Tensor p = probabilities(q, k, how, c);
    if (how.dropout > 0) p = dropped(std::move(p), how.dropout, derive(how.key, c.number));
    c.queries_of(out).copy_(p.to(q.scalar_type()).matmul(c.keys_of(v)));
  });
  return out;
}

void masked_attention_backward(const at::Tensor& gout, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const MaskedAttention& how,
                               const at::Tensor& gq, const at::Tensor& gk, const at::Tensor& gv) {
  check_masked_attention(q, k, v, how);
  COMPACT_CHECK(q.sizes() == k.sizes(), "[attention] backward with more keys than queries");
  const at::ScalarType type = q.scalar_type();
  at::Tensor k_sum, v_sum;  // of the samples of the chunk
  for_chunks(q, k, how, [&](const Chunk& c) {
    at::Tensor slope;
    const at::Tensor p = probabilities(q, k, how, c, &slope), g = c.queries_of(gout);
    const bool first = c.query == 0, last = c.query + c.queries == q.size(2);
    const auto add = [&](at::Tensor& sum, at::Tensor part) {
      if (first && last) {
        sum = part;
        return;
      }
      // In f32, since there may be hundreds of chunks.
      if (first) {
        sum =
            at::zeros({c.samples, k.size(1), k.size(2), k.size(3)}, k.options().dtype(at::kFloat));
      }
      sum.narrow(2, c.key, c.keys).add_(part.to(at::kFloat));
    };
    at::Tensor gp = g.matmul(c.keys_of(v).transpose(2, 3)).to(at::kFloat);
    if (how.dropout > 0) {
      const uint64_t key = derive(how.key, c.number);
      const at::Tensor kept = at::empty_like(p);
      drop_into(kept, p, how.dropout, key);
      add(v_sum, kept.to(type).transpose(2, 3).matmul(g));
      gp = dropped(std::move(gp), how.dropout, key);
    } else {
      add(v_sum, p.to(type).transpose(2, 3).matmul(g));
    }
    at::Tensor gs = at::_softmax_backward_data(gp, p, -1, at::kFloat).mul_(factor_of(q, how));
    if (slope.defined()) gs.mul_(slope);
    slope = at::Tensor();
    gs = gs.to(type);
    add(k_sum, gs.transpose(2, 3).matmul(c.queries_of(q)));
    c.queries_of(gq).copy_(gs.matmul(c.keys_of(k)));
    if (!last) return;
    c.samples_of(gk).copy_(k_sum);
    c.samples_of(gv).copy_(v_sum);
    k_sum = v_sum = at::Tensor();
  });
}

}  // namespace compact
