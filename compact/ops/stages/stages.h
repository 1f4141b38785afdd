// SPDX-License-Identifier: Apache-2.0
// The stages of transformer segments. Activations are [batch, sequence, width], contiguous. A stage
// gets its weights at every call, in this order: weight, bias.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "compact/base/rope_config.h"
#include "compact/ops/functions/attention.h"
#include "compact/ops/segments/segment.h"

namespace compact {

// y = x / sqrt(mean(x^2) + eps) * (offset + weight), whose type is that of x or f32; with an offset
// the factor is f32 (Gemma has 1). y has SegmentPass::products, where that is given. Keeps rstd.
// Zhang and Sennrich 2019.
std::shared_ptr<const Stage> rms_norm_stage(double eps, double offset = 0);

// The same for each head of a fused product [.., q_heads dim + k_heads k_dim + ..]: queries by the
// first weight [dim], keys by the second [k_dim], 0: dim; what follows them stays as it is. Keeps
// rstd of every head.
std::shared_ptr<const Stage> head_norm_stage(double eps, int64_t q_heads, int64_t k_heads,
                                             int64_t dim, double offset = 0, int64_t k_dim = 0);

// y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias. Keeps mean and 1/deviation. For products:
// y has SegmentPass::products, where that is given. Ba et al. 2016.
std::shared_ptr<const Stage> layer_norm_stage(double eps, bool for_products = false);

struct LinearOptions {
  bool bias = false;  // one of each weight, after all weights
  int64_t parts = 1;  // weights of the same input; their outputs lie one after the other
  // Elements per token of the projection of the input, where the weight has a carrier (its width).
  int64_t sketch_width = 0;
  // So many last columns of W are padding: they are 0, and so is their gradient, whatever a codec
  // gives for the input.
  int64_t zeros = 0;
};
// y = x W^T (+ bias), W [out, in], made in the type of W. With a carrier, which the first of
// several weights has for all of them, the gradient of W is (gy^T x) P, from the input or from its
// sketch.
std::shared_ptr<const Stage> linear_stage(const LinearOptions& options = {});

// A term added to as many columns of y as B has rows: scale dropout(x) A^T B^T, with A [rank, in]
// and B [out, rank]; `dropout` is the probability, in training.
struct LowRankAdapter {
  int64_t first = 0;  // of these columns
  double scale = 1, dropout = 0;
};
// A linear stage with adapters, whose A and B come after its own parameters. They may have another
// type than W, and are computed in that type. Keeps nothing for them. Hu et al. 2021 (LoRA).
std::shared_ptr<const Stage> adapted_linear_stage(const LinearOptions& options,
                                                  std::vector<LowRankAdapter> adapters);

// In training zeroes elements with probability p; keeps no mask.
std::shared_ptr<const Stage> dropout_stage(double p);

// y = factor x.
std::shared_ptr<const Stage> scale_stage(double factor);

// Cosines and sines of the angles of rotary position embedding, f32 [length, width / 2], where
// `width` elements of each head are turned. A configuration may scale them; scores are then scaled
// by the square of that.
struct RopeAngles {
  at::Tensor cos, sin;
};
struct RopeTables {
  RopeAngles near;
  // For all positions of sequences longer than `limit`; undefined: `near` is for all sequences.
  RopeAngles far = {};
  int64_t limit = 0;

  bool is_far(int64_t length) const { return far.cos.defined() && length > limit; }
  const RopeAngles& for_length(int64_t length) const { return is_far(length) ? far : near; }
  // For heads `dim` wide and sequences of up to `length` tokens, of a model with so many
  // max_position_embeddings. Dynamic positions beyond these are those of a sequence of `length`.
  static RopeTables make(const RopeConfig& config, int64_t dim, int64_t max_positions,
                         int64_t length, at::Device device);
};
// Rotates the first `heads` heads (queries, then keys) of a fused product, in place where it may;
// without tables by those of SegmentPass. Su et al. 2021, rotate-half convention.
std::shared_ptr<const Stage> rope_stage(std::shared_ptr<const RopeTables> tables, int64_t heads,
                                        int64_t dim);

struct AttentionOptions {
  bool causal = true;                // to no later token; else to all
  bool padded = false;               // sequences may have padding, to which no token attends
  std::optional<double> scale = {};  // of scores; none: 1 / sqrt(dim)
  double dropout = 0;                // of probabilities, in training
  int64_t window = 0;                // tokens that one attends to, itself among them; 0: all
  double softcap = 0;                // scores s are softcap tanh(s / softcap); 0: as they are
  // Bytes of gradients that a kernel for causal attention makes before they are copied to where
  // they belong: where all are more, it runs for some heads at a time.
  int64_t gradient_bytes = int64_t{1} << 28;
  // The choice of choose_masked_attention for the network's device and type, for attention that is
  // not causal, is padded, or has dropout.
  AttentionChoice choice = {AttentionKernel::kChunks, 0};
};
// Attention on a fused product [.., (heads + 2 kv_heads) dim] -> [.., heads dim]. Fused kernels
// keep the logsumexp and read input and output in backward. With a window or capped scores it is
// made in chunks, since not every device has a fused kernel for these: it keeps nothing and reads
// its input in backward.
std::shared_ptr<const Stage> attention_stage(int64_t heads, int64_t kv_heads, int64_t dim,
                                             const AttentionOptions& options = {});

// x Phi(x), or its approximation by tanh. Hendrycks and Gimpel 2016.
std::shared_ptr<const Stage> gelu_stage(bool tanh);

// gelu(gate) * up on a fused product [.., 2m] -> [.., m], with that approximation. Side output:
// gelu(gate). Shazeer 2020.
std::shared_ptr<const Stage> geglu_stage(int64_t m);

// silu(gate) * up on a fused product [.., 2m] -> [.., m]. Side output: silu(gate). Shazeer 2020.
std::shared_ptr<const Stage> swiglu_stage(int64_t m);

}  // namespace compact
