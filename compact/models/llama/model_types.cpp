// SPDX-License-Identifier: Apache-2.0
#include "compact/models/llama/model_types.h"

#include <algorithm>
#include <nlohmann/json.hpp>

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
       .qkv_bias = true,
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
       .head_norms = true,
       .window = AttentionWindow::kSwitched,
       .window_size = 4096,
       .window_layers = 28},
      {.type = "phi3",
       .architecture = "Phi3ForCausalLM",
       .eps = 1e-5,
       .positions = 4096,
       .window = AttentionWindow::kAlways,
       .bos = 1,
       .eos = 32000,
       .pad = 32000,
       .fused = true,
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

void refuse_unsupported(const ConfigKeys& keys, const DecoderFamily& family) {
  const std::string activation = keys.text("hidden_act", "silu");
  COMPACT_CHECK(activation == "silu", keys.where(), ": hidden_act must be silu, is `", activation,
                "`");
  for (const char* key : {"resid_pdrop", "embd_pdrop", "hidden_dropout", "dropout"}) {
    const double dropout = keys.number(key, 0);
    COMPACT_CHECK(dropout == 0, keys.where(), ": ", key, " must be 0, is ", dropout);
  }
  const auto refuse = [&](const char* key, const nlohmann::json& harmless) {
    const nlohmann::json* value = keys.find(key);
    COMPACT_CHECK(!value || *value == harmless, keys.where(), ": ", key, " must be ",
                  harmless.dump(), " with model_type ", family.type, ", is ", value->dump());
  };
  if (!family.biases) refuse("attention_bias", false);
  if (!family.mlp_biases) refuse("mlp_bias", false);
  if (!family.qkv_bias) refuse("qkv_bias", false);
  if (family.window != AttentionWindow::kSwitched) refuse("use_sliding_window", false);
  if (family.window == AttentionWindow::kNone) refuse("sliding_window", nullptr);
  for (const char* key :
       {"lm_head_bias", "use_bias", "rope_interleaved", "qk_norm", "use_qk_norm", "use_mrope",
        "parallel_attn", "add_cross_attention", "scale_embedding", "use_bidirectional_attention"}) {
    refuse(key, false);
  }
  if (!family.multipliers) {
    refuse("attention_multiplier", nullptr);
    for (const char* key : {"embedding_multiplier", "residual_multiplier", "logits_scaling"}) {
      refuse(key, 1);
    }
  }
  if (!family.some_turn) refuse("no_rope_layers", nullptr);
  for (const char* key :
       {"attn_logit_softcapping", "final_logit_softcapping", "clip_qkv", "query_pre_attn_scalar",
        "num_local_experts", "num_experts", "attention_chunk_size"}) {
    refuse(key, nullptr);
  }
  for (const char* key : {"rope_type", "type"}) refuse(key, "default");
  refuse("is_causal", true);
  if (family.window != AttentionWindow::kSwitched && keys.find("layer_types")) {
    for (const nlohmann::json& type : *keys.find("layer_types")) {
      COMPACT_CHECK(type == "full_attention", keys.where(),
                    ": layer_types must be full_attention with model_type ", family.type, ", has ",
                    type.dump());
    }
  }
  keys.refuse_quantized();
}

}  // namespace compact
