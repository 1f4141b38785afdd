// SPDX-License-Identifier: Apache-2.0
// Shapes: t new tokens, p earlier ones, n hidden, d the width of a head.
#include "compact/models/llama_decode.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "compact/base/check.h"
#include "compact/ops/functions/attention.h"

namespace compact {
namespace {

at::Tensor run(const std::shared_ptr<const Stage>& stage, const std::vector<Weight>& weights,
               at::Tensor x) {
  Stage::Forward forward;
  forward.input = std::move(x);
  forward.weights = weights;
  return stage->forward(forward);
}

// Attention of the last t positions to all p + t, in f32. q [1, heads, t, d], k and v
// [1, kv_heads, p + t, d] -> [1, heads, t, d]
at::Tensor attend_to_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           AttentionScale scale) {
  const int64_t heads = q.size(1), t = q.size(2), d = q.size(3);
  const int64_t kv_heads = k.size(1), all = k.size(2), group = heads / kv_heads;
  // The queries of a group are rows of one product: keys and values are not repeated.
  const at::Tensor rows = q.reshape({kv_heads, group * t, d}).to(at::kFloat);
  at::Tensor scores = rows.bmm(k[0].to(at::kFloat).transpose(1, 2));  // [kv_heads, group*t, p+t]
  scores.div_(scale ? 1 / *scale : std::sqrt(static_cast<double>(d)));
  if (t > 1) {
    const at::Tensor future = at::ones({t, all}, q.options().dtype(at::kBool)).triu(all - t + 1);
    scores.view({kv_heads, group, t, all})
        .masked_fill_(future, -std::numeric_limits<double>::infinity());
  }
  return at::softmax(scores, -1)
      .bmm(v[0].to(at::kFloat))
      .view({1, heads, t, d})
      .to(q.scalar_type());
}

}  // namespace

LlamaDecoder::LlamaDecoder(const Llama& model, int64_t capacity)
    : model_(model),
      capacity_(capacity),
      norm_(rms_norm_stage(model.config().rms_norm_eps)),
      head_norm_(head_norm_stage(model.config().rms_norm_eps, model.config().num_attention_heads,
                                 model.config().num_key_value_heads, model.config().head_dim)),
      linear_(linear_stage()),
      biased_(linear_stage({.bias = true})),
      swiglu_(swiglu_stage(model.config().intermediate_size)) {
  COMPACT_CHECK(capacity > 0 && capacity <= model.options().max_length,
                "[decode] capacity must be from 1 to the model's max_length ",
                model.options().max_length, ", is ", capacity);
  const LlamaConfig& c = model.config();
  const auto options =
      at::TensorOptions().device(model.options().device).dtype(model.options().dtype);
  const std::vector<int64_t> shape = {1, c.num_key_value_heads, capacity, c.head_dim};
  for (size_t i = 0; i < model.layers().size(); ++i) {
    caches_.push_back({at::empty(shape, options), at::empty(shape, options)});
  }
}

at::Tensor LlamaDecoder::product(const at::Tensor& x, const Parameter* weight,
                                 const Parameter* bias) const {
  return bias ? run(biased_, {*weight, *bias}, x) : run(linear_, {*weight}, x);
}

// qkv [1, t, (heads + 2 kv_heads) d], rotated here -> [1, t, heads d]
at::Tensor LlamaDecoder::attend(const Cache& cache, const at::Tensor& qkv, size_t layer,
                                const RopeAngles& angles) const {
  const LlamaConfig& c = model_.config();
  const int64_t t = qkv.size(1), heads = c.num_attention_heads, kv = c.num_key_value_heads;
  if (c.turns(static_cast<int64_t>(layer))) {
    rope_in_place(qkv[0], angles, heads + kv, c.head_dim, length_, false);
  }
  const at::Tensor split = qkv.view({1, t, heads + 2 * kv, c.head_dim}).transpose(1, 2);
  const at::Tensor q = split.narrow(1, 0, heads);
  cache.keys.narrow(2, length_, t).copy_(split.narrow(1, heads, kv));
  cache.values.narrow(2, length_, t).copy_(split.narrow(1, heads + kv, kv));
  const at::Tensor k = cache.keys.narrow(2, 0, length_ + t);
  const at::Tensor v = cache.values.narrow(2, 0, length_ + t);
  // A prompt takes the kernel of training, which never makes the scores of t x t positions.
  const AttentionScale scale = c.attention_multiplier;
  const at::Tensor out =
      length_ == 0 ? attention_forward(q, k, v, scale).out : attend_to_cache(q, k, v, scale);
  return out.transpose(1, 2).reshape({1, t, heads * c.head_dim});
}

at::Tensor LlamaDecoder::append(std::span<const int64_t> ids) {
  const auto t = static_cast<int64_t>(ids.size());
  COMPACT_CHECK(t > 0, "[decode] append needs at least one token");
  COMPACT_CHECK(length_ + t <= capacity_, "[decode] ", length_, " + ", t,
                " tokens are more than the capacity ", capacity_);
  const LlamaConfig& c = model_.config();
  for (const int64_t id : ids) {
    COMPACT_CHECK(id >= 0 && id < c.vocab_size, "[decode] a token id must be below ", c.vocab_size,
                  ", is ", id);
  }
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  const bool far = model_.rope().is_far(length_ + t);
  if (length_ > 0 && far != far_) length_ = 0;  // what is kept was turned otherwise
  far_ = far;
  at::NoGradGuard no_grad;
  const auto rows = static_cast<int64_t>(ids_.size()) - length_;
  const at::Tensor tokens = at::empty({1, rows}, at::kLong);
  std::copy(ids_.begin() + length_, ids_.end(), tokens.mutable_data_ptr<int64_t>());
  const RopeAngles& angles = model_.rope().of(length_ + rows);
  const auto scaled = [](at::Tensor y, double factor) { return factor == 1 ? y : y.mul_(factor); };
  const double residual = c.residual_multiplier;
  at::Tensor x = model_.embedded(tokens.to(model_.options().device), model_.embedding().weight);
  for (size_t i = 0; i < caches_.size(); ++i) {
    const Llama::Layer& l = model_.layers()[i];
    at::Tensor qkv = product(run(norm_, {*l.attn_norm}, x), l.qkv, l.qkv_bias);
    if (l.q_norm) qkv = run(head_norm_, {*l.q_norm, *l.k_norm}, qkv);
    x = x + scaled(product(attend(caches_[i], qkv, i, angles), l.out, l.out_bias), residual);
    const at::Tensor gate_up = product(run(norm_, {*l.mlp_norm}, x), l.gate_up, l.gate_up_bias);
    x = x + scaled(product(run(swiglu_, {}, gate_up), l.down, l.down_bias), residual);
  }
  length_ += rows;
  const at::Tensor last = run(norm_, {model_.final_norm()}, x.narrow(1, rows - 1, 1));
  return at::linear(scaled(last, 1 / c.logits_scaling), model_.head().weight).view({-1});
}

void LlamaDecoder::truncate(int64_t length) {
  COMPACT_CHECK(length >= 0 && length <= length_, "[decode] cannot keep ", length, " of ", length_,
                " tokens");
  length_ = length;
  ids_.resize(static_cast<size_t>(length));
}

}  // namespace compact
