// SPDX-License-Identifier: Apache-2.0
// What decoders of LLaMA's and of Gemma's kind share: every block (gated_block.h) is one segment,
// and products of one input are fused (q, k, v; gate, up).
//
// Parameters: embedding, layers.N.attn.{norm,qkv,out}, layers.N.mlp.{norm,gate_up,down},
// final.norm, head (absent where tied); where the shape has them layers.N.attn.{q_norm,k_norm},
// layers.N.{attn,mlp}.post_norm and a matrix's name with .bias. Slots: those of blocks layers.N,
// final.{input,norm}, loss.logits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compact/models/language_model.h"
#include "compact/networks/gated_block.h"
#include "compact/ops/stages/stages.h"

namespace compact {

struct GatedShape {
  int64_t hidden = 0, intermediate = 0, layers = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  double eps = 1e-6;           // of norms
  bool norms_add_one = false;  // they multiply by 1 + their weight, which begins at 0
  bool head_norms = false;     // of each query and key, before they are turned
  bool post_norms = false;     // of what attention and MLP give, before it is added
  bool geglu = false;          // with the approximation of GELU by tanh; else SwiGLU
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  double residual = 1;         // what is added is multiplied by it
  double embedding = 1;        // so is what the first block reads
  std::optional<int64_t> pad;  // whose embedding is not trained by what reads it
  bool fused_names = false;    // a file has one tensor of q, k and v, and of gate and up

  // How many zeros follow `intermediate`: rows of gate and of up, columns of down, on every device
  // alike. Matrix units read rows of a multiple of 16 bytes. A file's one tensor of gate and up
  // shows no gap between the two, so that there are none then.
  int64_t padding() const { return fused_names ? 0 : (8 - intermediate % 8) % 8; }
};

class GatedDecoder : public LanguageModel {
 public:
  bool is_far(int64_t length) const override;
  // Hugging Face names; fused products as views of their parts, unless a file has them fused;
  // without padding.
  std::vector<std::pair<std::string, at::Tensor>> named_tensors() const override;

 protected:
  // With the parameters of all layers, normal(0, initializer_range), norms that multiply by 1,
  // biases 0.
  GatedDecoder(const Policy& policy, const NetworkOptions& options, const TokenIds& tokens,
               const GatedShape& shape, double initializer_range, bool tied);

  // For sequences as long as the options say, of a model with so many max_position_embeddings.
  std::shared_ptr<const RopeTables> tables(const RopeConfig& rope, int64_t max_positions) const;
  // The next block, whose queries and keys are turned by `rope` (null: they are not). A window that
  // no sequence is longer than is none.
  void add_block(std::shared_ptr<const RopeTables> rope, AttentionOptions attention);
  // To be called after the last block: adds the final norm, whose result is multiplied by `scale`.
  void finish_blocks(double scale = 1);

 private:
  GatedBlock layer(int64_t index);
  Affine norm(const std::string& name, int64_t width);
  at::Tensor embedded(const at::Tensor& ids, const at::Tensor& embedding, const Pass& pass,
                      int64_t position) const override;

  GatedShape shape_;
  std::vector<GatedBlock> layers_;
  int64_t blocks_ = 0;  // that are there
  std::vector<std::shared_ptr<const RopeTables>> rope_;
  Affine final_norm_;
};

}  // namespace compact
