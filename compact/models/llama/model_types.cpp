// SPDX-License-Identifier: Apache-2.0
#include "compact/models/llama/model_types.h"

#include <algorithm>

#include "compact/base/check.h"

namespace compact {

const std::vector<DecoderFamily>& decoder_families() {
  static const std::vector<DecoderFamily> all = {
      {.type = "llama",
       .architecture = "LlamaForCausalLM",
       .says_head_dim = true,
       .biases = true,
       .mlp_biases = true,
       .bos = 1,
       .eos = 2},
      {.type = "mistral",
       .architecture = "MistralForCausalLM",
       .positions = 131072,
       .kv_heads = 8,
       .says_head_dim = true,
       .window = AttentionWindow::kAlways,
       .window_size = 4096,
       .bos = 1,
       .eos = 2},
      {.type = "qwen2",
       .architecture = "Qwen2ForCausalLM",
       .positions = 32768,
       .kv_heads = 32,
       .block = {.qkv_bias = true},
       .window = AttentionWindow::kSwitched,
       .window_size = 4096,
       .window_layers = 28},
      {.type = "qwen3",
       .architecture = "Qwen3ForCausalLM",
       .positions = 32768,
       .kv_heads = 32,
       .head_dim = 128,
       .says_head_dim = true,
       .biases = true,
       .block = {.head_norms = true},
       .window = AttentionWindow::kSwitched,
       .window_size = 4096,
       .window_layers = 28},
      {.type = "phi3",
       .architecture = "Phi3ForCausalLM",
       .eps = 1e-5,
       .positions = 4096,
       .block = {.qkv_parts = 1, .gate_up_parts = 1},
       .window = AttentionWindow::kAlways,
       .bos = 1,
       .eos = 32000,
       .pad = 32000,
       .rope = {.phi3 = true}},
      {.type = "smollm3",
       .architecture = "SmolLM3ForCausalLM",
       .positions = 32768,
       .tied = true,
       .kv_heads = 4,
       .biases = true,
       .mlp_biases = true,
       .window = AttentionWindow::kSwitched,
       .bos = 128000,
       .eos = 128001,
       .pad = 128004,
       .some_turn = true,
       .rope = {.theta = 2e6}},
      {.type = "granite",
       .architecture = "GraniteForCausalLM",
       .biases = true,
       .mlp_biases = true,
       .bos = 1,
       .eos = 2,
       .multipliers = true},
      {.type = "olmo2",
       .architecture = "Olmo2ForCausalLM",
       .eps = 1e-5,
       .biases = true,
       .block = {.pre_norms = false, .head_norms = true, .post_norms = true, .whole_norms = true},
       .eos = 50279,
       .pad = 1},
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
