// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/masked_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/ops/functions/dropout.h"

namespace compact {
namespace {

constexpr int64_t kMostScores = int64_t{1} << 22;  // of a chunk: 16 MiB in f32

// Some samples, and some queries of each: few samples where one takes a whole chunk.
struct Chunk {
  int64_t sample = 0, samples = 0, query = 0, queries = 0;
  uint64_t number = 0;

  at::Tensor samples_of(const at::Tensor& t) const { return t.narrow(0, sample, samples); }
  at::Tensor queries_of(const at::Tensor& t) const {
    return samples_of(t).narrow(2, query, queries);
  }
};

template <class F>
void for_chunks(const at::Tensor& q, F f) {
  const int64_t batch = q.size(0), length = q.size(2), row = q.size(1) * length;
  const int64_t samples = std::clamp<int64_t>(kMostScores / (row * length), 1, batch);
  const int64_t queries = std::clamp<int64_t>(kMostScores / (samples * row), 1, length);
  Chunk c;
  for (c.sample = 0; c.sample < batch; c.sample += samples) {
    c.samples = std::min(samples, batch - c.sample);
    for (c.query = 0; c.query < length; c.query += queries, ++c.number) {
      c.queries = std::min(queries, length - c.query);
      f(c);
    }
  }
}

double scale_of(const at::Tensor& q, const MaskedAttention& how) {
  return how.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
}

// f32 [samples, heads, queries, sequence].
at::Tensor probabilities(const at::Tensor& q, const at::Tensor& k, const MaskedAttention& how,
                         const Chunk& c) {
  at::Tensor scores =
      c.queries_of(q).matmul(c.samples_of(k).transpose(2, 3)).to(at::kFloat).mul_(scale_of(q, how));
  if (how.lengths.defined()) {
    const at::Tensor place = at::arange(k.size(2), how.lengths.options());
    const at::Tensor padding = place.ge(c.samples_of(how.lengths).unsqueeze(1));
    scores.masked_fill_(padding.unsqueeze(1).unsqueeze(1),
                        -std::numeric_limits<double>::infinity());
  }
  if (how.causal) {
    const at::Tensor place = at::arange(k.size(2), k.options().dtype(at::kLong));
    scores.masked_fill_(place.gt(place.narrow(0, c.query, c.queries).unsqueeze(1)),
                        -std::numeric_limits<double>::infinity());
  }
  return at::_softmax(scores, -1, false);
}

void check_inputs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const MaskedAttention& how) {
  COMPACT_CHECK(q.dim() == 4 && q.sizes() == k.sizes() && q.sizes() == v.sizes() && q.numel() > 0,
                "[attention] q, k, v must be [batch, heads, sequence, dim] alike, are ", q.sizes(),
                ", ", k.sizes(), ", ", v.sizes());
  COMPACT_CHECK(!how.lengths.defined() || (how.lengths.scalar_type() == at::kLong &&
                                           how.lengths.sizes() == at::IntArrayRef{q.size(0)}),
                "[attention] lengths must be int64 [", q.size(0), "]");
}

}  // namespace

at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const MaskedAttention& how) {
  check_inputs(q, k, v, how);
  const at::Tensor out =
      at::empty({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options()).transpose(1, 2);
  for_chunks(q, [&](const Chunk& c) {
    at::Tensor p = probabilities(q, k, how, c);
    if (how.dropout > 0) p = dropped(std::move(p), how.dropout, derive(how.key, c.number));
    c.queries_of(out).copy_(p.to(q.scalar_type()).matmul(c.samples_of(v)));
  });
  return out;
}

void masked_attention_backward(const at::Tensor& gout, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const MaskedAttention& how,
                               const at::Tensor& gq, const at::Tensor& gk, const at::Tensor& gv) {
  check_inputs(q, k, v, how);
  const at::ScalarType type = q.scalar_type();
  at::Tensor k_sum, v_sum;  // of the samples of the chunk
  for_chunks(q, [&](const Chunk& c) {
    const at::Tensor p = probabilities(q, k, how, c), g = c.queries_of(gout);
    const bool first = c.query == 0, last = c.query + c.queries == q.size(2);
    const auto add = [&](at::Tensor& sum, at::Tensor part) { sum = first ? part : sum.add_(part); };
    at::Tensor gp = g.matmul(c.samples_of(v).transpose(2, 3)).to(at::kFloat);
    if (how.dropout > 0) {
      const uint64_t key = derive(how.key, c.number);
      const at::Tensor kept = at::empty_like(p);
      drop_into(kept, p, how.dropout, key);
      add(v_sum, kept.to(type).transpose(2, 3).matmul(g));
      gp = dropped(std::move(gp), how.dropout, key);
    } else {
      add(v_sum, p.to(type).transpose(2, 3).matmul(g));
    }
    const at::Tensor gs =
        at::_softmax_backward_data(gp, p, -1, at::kFloat).mul_(scale_of(q, how)).to(type);
    add(k_sum, gs.transpose(2, 3).matmul(c.queries_of(q)));
    c.queries_of(gq).copy_(gs.matmul(c.samples_of(k)));
    if (!last) return;
    c.samples_of(gk).copy_(k_sum);
    c.samples_of(gv).copy_(v_sum);
    k_sum = v_sum = at::Tensor();
  });
}

}  // namespace compact
