// SPDX-License-Identifier: Apache-2.0
// Decoders of LLaMA's kind (Touvron et al. 2023): RMSNorm, rotary positions, grouped-query
// attention, SwiGLU; with biases, norms of heads and multipliers as the configuration says. Every
// block is one segment; products of one input are fused (q, k, v; gate, up).
//
// Parameters: embedding, layers.N.attn.{norm,qkv,out}, layers.N.mlp.{norm,gate_up,down},
// final.norm, head (absent where tied); where the model has them layers.N.attn.{q_norm,k_norm} and
// the matrix's name with .bias. Slots: layers.N.attn.{input,norm,qkv,out},
// layers.N.mlp.{input,norm,gate_up,silu,product}, final.{input,norm}, loss.logits; with norms of
// heads layers.N.attn.heads, which attention reads then.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compact/models/language_model.h"
#include "compact/models/llama/config.h"
#include "compact/ops/stages/stages.h"

namespace compact {

class Llama final : public LanguageModel {
 public:
  // Weights normal(0, initializer_range) as in Hugging Face, norms 1, biases 0. Throws InputError
  // where the policy names slots or parameters that the model has not, or treatments that cannot
  // be, and where max_length is above the model's sliding window.
  Llama(const LlamaConfig& config, const Policy& policy, const NetworkOptions& options);
  Llama(const Llama&) = delete;

  bool is_far(int64_t length) const override { return rope_->is_far(length); }
  const LlamaConfig& config() const { return config_; }
  // Hugging Face names; fused products as views of their parts.
  std::vector<std::pair<std::string, at::Tensor>> named_tensors() const override;

 private:
  struct Layer {
    Affine attn_norm, qkv, out, mlp_norm, gate_up, down;
    Affine q_norm, k_norm;  // null where the model has none
  };
  Affine norm(const std::string& name, int64_t width);
  void add_block(const Layer& layer, int64_t index);
  at::Tensor embedded(const at::Tensor& ids, const at::Tensor& embedding, const Pass& pass,
                      int64_t position) const override;

  LlamaConfig config_;
  std::shared_ptr<const RopeTables> rope_;
  std::vector<Layer> layers_;
  Affine final_norm_;
};

}  // namespace compact
