// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "compact/base/check.h"
#include "compact/models/config_rows.h"
#include "compact/models/gemma/gemma.h"
#include "compact/models/rope_json.h"

namespace compact {
namespace {

using nlohmann::json;

constexpr const char *kFull = "full_attention", *kSliding = "sliding_attention";
constexpr const char* kActivation = "gelu_pytorch_tanh";
constexpr RopeForm kFullForm{.theta = 1e6}, kSlidingForm{}, kGemma2Form{};

void refuse_others(const ConfigRows& rows, const char* type) {
  rows.never({"use_bidirectional_attention", "lm_head_bias", "mlp_bias", "use_mrope",
              "add_cross_attention", "attention_k_eq_v", "enable_moe_block"});
  rows.refuse(type, nullptr,
              {"num_experts", "num_local_experts", "clip_qkv", "attention_multiplier",
               "residual_multiplier", "no_rope_layers", "altup_num_inputs"});
  rows.refuse(type, true, {"is_causal"});
  rows.given.refuse_quantized(/*but_bitsandbytes=*/true);
}

void layer_types(ConfigRows& rows, GemmaConfig& c) {
  std::vector<std::string> types;
  if (rows.reads() && !rows.given.find("layer_types")) {
    const int64_t period = c.block.head_norms ? rows.given.integer("sliding_window_pattern", 6) : 2;
    COMPACT_CHECK(period >= 1, rows.where(), ": sliding_window_pattern must be at least 1, is ",
                  period);
    c.sliding_layers = gemma_windows(c.num_hidden_layers, period);
  }
  for (const bool slides : c.sliding_layers) types.push_back(slides ? kSliding : kFull);
  rows.list("layer_types", types);
  c.sliding_layers.clear();
  for (const std::string& type : types) {
    COMPACT_CHECK(type == kFull || type == kSliding, rows.where(), ": layer_types must be ", kFull,
                  " or ", kSliding, ", has `", type, "`");
    c.sliding_layers.push_back(type == kSliding);
  }
  const bool slides = std::ranges::find(c.sliding_layers, true) != c.sliding_layers.end();
  COMPACT_CHECK(!slides || !rows.given.has("sliding_window") || rows.given.find("sliding_window"),
                rows.where(), ": sliding_window must be given where layer_types has ", kSliding);
  COMPACT_CHECK(static_cast<int64_t>(types.size()) == c.num_hidden_layers, rows.where(),
                ": layer_types must have ", c.num_hidden_layers,
                " entries, one of each layer, has ", types.size());
}

// The keys that rotary positions are read from, for one kind of layers: transformers 5 has an
// object for each kind, before that there was one for all, which windows did not obey.
json rope_keys(const ConfigKeys& keys, const char* kind) {
  json found = json::object();
  const auto take = [&](const char* key, const char* as) {
    if (const json* value = keys.find(key)) found[as] = *value;
  };
  if (std::string_view(kind) == kFull) {
    for (const char* key : {"rope_theta", "rope_scaling"}) take(key, key);
  } else {
    take("rope_local_base_freq", "rope_theta");
  }
  take("partial_rotary_factor", "partial_rotary_factor");
  const json* all = keys.find("rope_parameters");
  if (!all) return found;
  COMPACT_CHECK(all->is_object(), keys.where(), ": rope_parameters must be an object, is ",
                all->dump());
  for (const auto& [key, value] : all->items()) {
    COMPACT_CHECK(key == kFull || key == kSliding, keys.where(), ": rope_parameters must have ",
                  kFull, " and ", kSliding, " with model_type gemma3_text, has ", key);
  }
  if (all->contains(kind)) found["rope_parameters"] = (*all)[kind];
  return found;
}

RopeConfig rope_of(const ConfigRows& rows, const char* kind, const RopeForm& form,
                   int64_t max_positions) {
  const json found = rope_keys(rows.given, kind);
  return read_rope(ConfigKeys(found, cat(rows.where(), ": ", kind)), form, max_positions);
}

void rope_rows(ConfigRows& rows, GemmaConfig& c) {
  if (rows.reads() && c.block.head_norms) {
    c.rope = rope_of(rows, kFull, kFullForm, c.max_position_embeddings);
    c.sliding_rope = rope_of(rows, kSliding, kSlidingForm, c.max_position_embeddings);
  } else if (rows.reads()) {
    c.rope = read_rope(rows.given, kGemma2Form, c.max_position_embeddings);
  }
  check_rope_config(c.rope, c.block.head_dim, rows.where());
  check_rope_config(c.sliding_rope, c.block.head_dim, rows.where());
  json& written = rows.written();
  write_rope(c.rope, c.block.head_norms ? kFullForm : kGemma2Form, written);
  if (!c.block.head_norms) return;
  json sliding;
  write_rope(c.sliding_rope, kSlidingForm, sliding);
  written["rope_parameters"] = {{kFull, written["rope_parameters"]},
                                {kSliding, sliding["rope_parameters"]}};
  rows.put("rope_local_base_freq", c.sliding_rope.theta);
}

}  // namespace

std::vector<bool> gemma_windows(int64_t layers, int64_t period) {
  std::vector<bool> sliding;
  for (int64_t i = 1; i <= layers; ++i) sliding.push_back(i % period != 0);
  return sliding;
}

std::string difference(const GemmaConfig& c, const GemmaConfig& read) {
  if (c.block != read.block) return "block." + difference(c.block, read.block);
  return c.rope != read.rope ? "rope" : "sliding_rope";
}

void keys_of(ConfigRows& rows, GemmaConfig& c) {
  const bool third = c.block.head_norms =
      rows.model_type({"gemma2", "gemma3_text"}, c.block.head_norms) > 0;
  if (rows.reads() && !third) {
    c.vocab_size = 256000, c.max_position_embeddings = 8192;
    c.block.softcap = 50, c.final_logit_softcapping = 30;
  }
  rows.put("architectures", {third ? "Gemma3ForCausalLM" : "Gemma2ForCausalLM"});
  rows.choice("hidden_activation", {kActivation});
  rows.choice("hidden_act", {kActivation});
  rows.leave_out("hidden_act");
  refuse_others(rows, third ? "gemma3_text" : "gemma2");
  BlockShape& b = c.block;
  rows.size("hidden_size", b.hidden);
  rows.size("intermediate_size", b.intermediate);
  rows.layers("num_hidden_layers", c.num_hidden_layers);
  rows.size("num_attention_heads", b.heads);
  rows.size("num_key_value_heads", b.kv_heads);
  rows.size("head_dim", b.head_dim);
  rows.size("vocab_size", c.vocab_size);
  rows.size("max_position_embeddings", c.max_position_embeddings);
  rows.size("sliding_window", c.sliding_window);
  check_rotary_heads(b.hidden, b.heads, b.kv_heads, b.head_dim, rows.where());
  layer_types(rows, c);
  rope_rows(rows, c);
  rows.positive("rms_norm_eps", b.eps);
  rows.positive("query_pre_attn_scalar", c.query_pre_attn_scalar);
  constexpr double kMost = int64_t{1} << 53;
  const double scalar = c.query_pre_attn_scalar;  // transformers has it as an integer
  if (scalar <= kMost && scalar == std::floor(scalar)) {
    rows.put("query_pre_attn_scalar", static_cast<int64_t>(scalar));
  }
  COMPACT_CHECK(!third || !rows.given.find("attn_logit_softcapping"), rows.where(),
                ": attn_logit_softcapping must be null with model_type gemma3_text, which does not "
                "cap scores, is ",
                rows.given.find("attn_logit_softcapping")->dump());
  rows.positive_or_none("attn_logit_softcapping", b.softcap);
  rows.positive_or_none("final_logit_softcapping", c.final_logit_softcapping);
  rows.flag("attention_bias", b.qkv_bias);
  if (rows.reads()) b.out_bias = b.qkv_bias;
  rows.dropout("attention_dropout", b.attention_dropout);
  rows.flag("tie_word_embeddings", c.tie_word_embeddings);
  rows.positive("initializer_range", c.initializer_range);
  rows.token("bos_token_id", c.bos_token_id);
  rows.tokens("eos_token_id", c.eos_token_ids);
  rows.token("pad_token_id", c.pad_token_id);
  check_tokens(c.tokens(), rows.where());
  rows.put("use_cache", true);
  rows.put_dtypes();
}

}  // namespace compact
