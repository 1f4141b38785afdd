// SPDX-License-Identifier: Apache-2.0
#include "compact/models/llama/model_types.h"

#include <algorithm>

#include "compact/base/check.h"

namespace compact {

const std::vector<DecoderFamily>& decoder_families() {
  static const std::vector<DecoderFamily> all = {
      {.type = "llama",
       .architecture = "LlamaForCausalLM",
       .config = {.bos_token_id = 1, .eos_token_ids = {2}},
       .says_head_dim = true,
       .biases = true,
       .mlp_biases = true},
      {.type = "mistral",
       .architecture = "MistralForCausalLM",
       .config = {.block = {.kv_heads = 8},
                  .max_position_embeddings = 131072,
                  .bos_token_id = 1,
                  .eos_token_ids = {2}},
       .says_head_dim = true,
       .window = AttentionWindow::kAlways,
       .window_size = 4096},
      {.type = "qwen2",
       .architecture = "Qwen2ForCausalLM",
       .config = {.block = {.kv_heads = 32, .qkv_bias = true}, .max_position_embeddings = 32768},
       .window = AttentionWindow::kSwitched,
       .window_size = 4096,
       .window_layers = 28},
      {.type = "qwen3",
       .architecture = "Qwen3ForCausalLM",
       .config = {.block = {.kv_heads = 32, .head_dim = 128, .head_norms = true},
                  .max_position_embeddings = 32768},
       .says_head_dim = true,
       .biases = true,
       .window = AttentionWindow::kSwitched,
       .window_size = 4096,
       .window_layers = 28},
      {.type = "phi3",
       .architecture = "Phi3ForCausalLM",
       .config = {.block = {.eps = 1e-5, .qkv_parts = 1, .gate_up_parts = 1},
                  .max_position_embeddings = 4096,
                  .bos_token_id = 1,
                  .eos_token_ids = {32000},
                  .pad_token_id = 32000},
       .window = AttentionWindow::kAlways,
       .rope = {.phi3 = true}},
      {.type = "smollm3",
       .architecture = "SmolLM3ForCausalLM",
       .config = {.block = {.kv_heads = 4},
                  .max_position_embeddings = 32768,
                  .tie_word_embeddings = true,
                  .bos_token_id = 128000,
                  .eos_token_ids = {128001},
                  .pad_token_id = 128004},
       .biases = true,
       .mlp_biases = true,
       .window = AttentionWindow::kSwitched,
       .some_turn = true,
       .rope = {.theta = 2e6}},
      {.type = "granite",
       .architecture = "GraniteForCausalLM",
       .config = {.block = {.scale = 1}, .bos_token_id = 1, .eos_token_ids = {2}},
       .biases = true,
       .mlp_biases = true,
       .multipliers = true},
      {.type = "olmo2",
       .architecture = "Olmo2ForCausalLM",
       .config = {.block = {.eps = 1e-5,
                            .pre_norms = false,
                            .head_norms = true,
                            .post_norms = true,
                            .whole_norms = true},
                  .eos_token_ids = {50279},
                  .pad_token_id = 1},
       .biases = true},
  };
  return all;
}

const DecoderFamily& decoder_family(std::string_view type, std::string_view where) {
  const auto found = std::ranges::find(decoder_families(), type, &DecoderFamily::type);
  std::string known;
  for (const DecoderFamily& f : decoder_families())
    known += (known.empty() ? "" : ", ") + std::string(f.type);
  COMPACT_CHECK(found != decoder_families().end(), where, ": model_type must be one of ", known,
                ", is `", type, "`");
  return *found;
}

}  // namespace compact
