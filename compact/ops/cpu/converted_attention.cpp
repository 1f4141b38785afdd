// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "compact/ops/cpu/bf16_products.h"

namespace compact {
namespace {

using at::Tensor;
using Mask = std::optional<at::Tensor>;

// Most elements of a tensor converted to f32 at a time, unless a single head has more.
constexpr int64_t kElements = int64_t{1} << 19;

// Some heads of some samples; all heads where there are fewer of keys than of queries.
struct Heads {
  int64_t sample, samples, head, heads;

  Tensor slice(const Tensor& t) const {
    return t.narrow(0, sample, samples).narrow(1, head, std::min(heads, t.size(1)));
  }
  Tensor f32(const Tensor& t) const { return slice(t).to(at::kFloat); }
  // A mask is [queries, keys] or has a batch and heads, each of which may be 1.
  Mask slice(const Mask& mask) const {
    if (!mask || !mask->defined()) return {};
    Tensor m = *mask;
    if (m.dim() == 4) {
      if (m.size(0) > 1) m = m.narrow(0, sample, samples);
      if (m.size(1) > 1) m = m.narrow(1, head, heads);
    }
    return m.scalar_type() == at::kBFloat16 ? m.to(at::kFloat) : m;
  }
};

// Calls run for parts of the heads of q, all of about the same size; on the meta device for one.
void each_part(const Tensor& q, const Tensor& k, const std::function<void(const Heads&)>& run) {
  const int64_t samples = q.size(0), heads = q.size(1);
  const int64_t head = std::max<int64_t>(1, std::max(q.size(2), k.size(2)) * q.size(3));
  const int64_t at_once = std::max<int64_t>(1, kElements / head);
  const bool alike = k.size(1) == heads;
  const int64_t of_heads = alike ? std::min(heads, at_once) : heads;
  const int64_t of_samples =
      of_heads < heads ? 1 : std::clamp<int64_t>(at_once / std::max<int64_t>(1, heads), 1, samples);
  for (int64_t b = 0; b < samples; b += of_samples) {
    for (int64_t h = 0; h < heads; h += of_heads) {
      run({b, std::min(of_samples, samples - b), h, std::min(of_heads, heads - h)});
      if (q.is_meta()) return;
    }
  }
}

// An empty tensor in the layout of LibTorch's kernel: [batch, tokens, heads, ...] in memory.
Tensor by_token(const Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

}  // namespace

std::tuple<Tensor, Tensor> converted_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                               double dropout, bool causal, const Mask& mask,
                                               std::optional<double> scale) {
  const Tensor out = by_token(q);
  const Tensor lse =
      at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat)).transpose(1, 2);
  each_part(q, k, [&](const Heads& part) {
    const auto [o, l] = at::_scaled_dot_product_flash_attention_for_cpu(
        part.f32(q), part.f32(k), part.f32(v), dropout, causal, part.slice(mask), scale);
    part.slice(out).copy_(o);
    part.slice(lse).copy_(l);
  });
  return {out, lse};
}

std::tuple<Tensor, Tensor, Tensor> converted_attention_backward(
    const Tensor& gout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
    const Tensor& lse, double dropout, bool causal, const Mask& mask, std::optional<double> scale) {
  const Tensor gq = by_token(q), gk = by_token(k), gv = by_token(v);
  each_part(q, k, [&](const Heads& part) {
    const auto [a, b, c] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        part.f32(gout), part.f32(q), part.f32(k), part.f32(v), part.f32(out), part.slice(lse),
        dropout, causal, part.slice(mask), scale);
    part.slice(gq).copy_(a);
    part.slice(gk).copy_(b);
    part.slice(gv).copy_(c);
  });
  return {gq, gk, gv};
}

}  // namespace compact
