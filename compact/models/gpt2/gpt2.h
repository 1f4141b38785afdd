// SPDX-License-Identifier: Apache-2.0
// GPT-2 (Radford et al. 2019): learned positions, LayerNorm before attention and MLP, GELU, biases.
// Every block is one segment.
//
// Parameters: embedding, positions, layers.N.attn.{norm,qkv,out}, layers.N.mlp.{norm,up,down},
// final.norm, head (absent where tied), and their names with .bias. Slots:
// layers.N.attn.{input,norm,qkv,out}, layers.N.mlp.{input,norm,up,gelu}, final.{input,norm},
// loss.logits.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compact/models/language_model.h"
#include "compact/networks/ungated_block.h"

namespace compact {

class ConfigRows;

// In the words of Hugging Face's `config.json` of model_type `gpt2`.
struct Gpt2Config {
  int64_t n_embd = 768, n_layer = 12, n_head = 12;
  int64_t n_inner = 0;  // of the MLP
  int64_t vocab_size = 50257;
  int64_t n_positions = 1024;
  bool gelu_tanh = true;  // activation_function gelu_new
  double layer_norm_epsilon = 1e-5;
  double embd_pdrop = 0.1, resid_pdrop = 0.1, attn_pdrop = 0.1;
  bool scale_attn_weights = true;                // by 1 / sqrt(width of a head)
  bool scale_attn_by_inverse_layer_idx = false;  // and by 1 / (1 + number of the layer)
  bool tie_word_embeddings = true;
  double initializer_range = 0.02;
  std::optional<int64_t> bos_token_id = 50256;
  std::vector<int64_t> eos_token_ids = {50256};

  TokenIds tokens() const { return {vocab_size, bos_token_id, eos_token_ids, {}}; }
  bool operator==(const Gpt2Config&) const = default;
};
void keys_of(ConfigRows& rows, Gpt2Config& c);  // see config_rows.h

class Gpt2 final : public LanguageModel {
 public:
  // Weights normal(0, initializer_range), those before a residual sum divided by sqrt(2 n_layer);
  // norms 1, biases 0. Throws InputError where the policy names slots or parameters that the model
  // lacks, or treatments that cannot be, and where max_length is above n_positions.
  Gpt2(const Gpt2Config& config, const Policy& policy, const NetworkOptions& options);
  Gpt2(const Gpt2&) = delete;

  const Gpt2Config& config() const { return config_; }
  // Hugging Face names; there matrices are [in, out], so these are transposed views.
  std::vector<std::pair<std::string, at::Tensor>> named_tensors() const override;

 private:
  const char* embedding_name() const override { return "transformer.wte.weight"; }
  void add_block(const UngatedBlock& block, int64_t index);
  at::Tensor embedded(const at::Tensor& ids, const at::Tensor& embedding, const Pass& pass,
                      int64_t position) const override;

  Gpt2Config config_;
  const Parameter* positions_ = nullptr;
  std::vector<UngatedBlock> layers_;
  Affine final_norm_;
};

}  // namespace compact
