// SPDX-License-Identifier: Apache-2.0
// The stages of transformer segments. Activations are [batch, sequence, width], contiguous. What a
// stage reads of its parameters, in this order, is given at every call: weight, bias.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "compact/ops/segment.h"

namespace compact {

// y = x / sqrt(mean(x^2) + eps) * weight, whose type is that of x or f32. Keeps rstd. Zhang and
// Sennrich 2019.
std::shared_ptr<const Stage> rms_norm_stage(double eps);

// y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias. Keeps mean and 1/deviation. Ba et al.
// 2016.
std::shared_ptr<const Stage> layer_norm_stage(double eps);

struct LinearOptions {
  bool bias = false;
  // Elements per token of the projection of the input, where the weight has a carrier (its width).
  int64_t sketch_width = 0;
};
// y = x W^T (+ bias), W [out, in]. With a carrier the gradient of W is (gy^T x) P, from the input
// or from its sketch.
std::shared_ptr<const Stage> linear_stage(const LinearOptions& options = {});

// In training zeroes elements with probability p; keeps no mask.
std::shared_ptr<const Stage> dropout_stage(double p);

// Angles of rotary position embedding, f32 [length, dim / 2]: position * base^(-2i / dim).
struct RopeTables {
  at::Tensor cos, sin;
  static RopeTables make(int64_t length, int64_t dim, double base, at::Device device);
};
// Rotates the first `heads` heads (queries, then keys) of a fused product, in place where it may.
// Su et al. 2021, rotate-half convention.
std::shared_ptr<const Stage> rope_stage(std::shared_ptr<const RopeTables> tables, int64_t heads,
                                        int64_t dim);
// The same on contiguous rows [tokens, width] that start at position `offset`, in place. Throws
// InputError where rows or tables are otherwise.
void rope_in_place(at::Tensor x, const RopeTables& tables, int64_t heads, int64_t dim,
                   int64_t offset, bool inverse);

// Causal attention on a fused product [.., (heads + 2 kv_heads) dim] -> [.., heads dim]. Keeps the
// logsumexp. Reads input and output in backward.
std::shared_ptr<const Stage> attention_stage(int64_t heads, int64_t kv_heads, int64_t dim);

// Attention to all tokens of a sequence but padding, [.., 3 heads dim] -> [.., heads dim]; in
// training with dropout of probabilities. Keeps nothing; reads its input in backward.
std::shared_ptr<const Stage> masked_attention_stage(int64_t heads, int64_t dim, double dropout);

// x Phi(x), or its approximation by tanh. Hendrycks and Gimpel 2016.
std::shared_ptr<const Stage> gelu_stage(bool tanh);

// silu(gate) * up on a fused product [.., 2m] -> [.., m]. Side output: silu(gate). Shazeer 2020.
std::shared_ptr<const Stage> swiglu_stage(int64_t m);

}  // namespace compact
