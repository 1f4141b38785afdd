// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "compact/base/check.h"
#include "compact/base/model_numbers.h"
#include "compact/io/config_keys.h"
#include "compact/models/gemma/gemma.h"
#include "compact/models/rope_json.h"

namespace compact {
namespace {

using nlohmann::json;

constexpr const char *kFull = "full_attention", *kSliding = "sliding_attention";
constexpr const char* kActivation = "gelu_pytorch_tanh";
constexpr std::pair<const char*, int64_t GemmaConfig::*> kSizes[] = {
    {"hidden_size", &GemmaConfig::hidden_size},
    {"intermediate_size", &GemmaConfig::intermediate_size},
    {"num_hidden_layers", &GemmaConfig::num_hidden_layers},
    {"num_attention_heads", &GemmaConfig::num_attention_heads},
    {"num_key_value_heads", &GemmaConfig::num_key_value_heads},
    {"head_dim", &GemmaConfig::head_dim},
    {"vocab_size", &GemmaConfig::vocab_size},
    {"max_position_embeddings", &GemmaConfig::max_position_embeddings},
    {"sliding_window", &GemmaConfig::sliding_window}};
constexpr RopeForm kFullForm{.theta = 1e6}, kSlidingForm{}, kGemma2Form{};

void refuse_others(const ConfigKeys& keys, bool third) {
  for (const char* key : {"hidden_activation", "hidden_act"}) {
    const std::string act = keys.text(key, kActivation);
    COMPACT_CHECK(act == kActivation, keys.where(), ": ", key, " must be ", kActivation, ", is `",
                  act, "`");
  }
  for (const char* key : {"use_bidirectional_attention", "lm_head_bias", "mlp_bias", "use_mrope",
                          "add_cross_attention", "attention_k_eq_v", "enable_moe_block"}) {
    COMPACT_CHECK(!keys.flag(key, false), keys.where(), ": ", key, " must be false, is true");
  }
  for (const char* key : {"num_experts", "num_local_experts", "clip_qkv", "attention_multiplier",
                          "residual_multiplier", "no_rope_layers", "altup_num_inputs"}) {
    COMPACT_CHECK(!keys.find(key), keys.where(), ": ", key, " must be null with model_type ",
                  third ? "gemma3_text" : "gemma2", ", is ", keys.find(key)->dump());
  }
  keys.refuse_quantized();
}

std::vector<bool> read_layers(const ConfigKeys& keys, int64_t layers, bool third) {
  if (!keys.find("layer_types")) {
    const int64_t period = third ? keys.integer("sliding_window_pattern", 6) : 2;
    COMPACT_CHECK(period >= 1, keys.where(), ": sliding_window_pattern must be at least 1, is ",
                  period);
    return gemma_windows(layers, period);
  }
  std::vector<bool> sliding;
  for (const std::string& type : keys.required_list<std::string>("layer_types")) {
    COMPACT_CHECK(type == kFull || type == kSliding, keys.where(), ": layer_types must be ", kFull,
                  " or ", kSliding, ", has `", type, "`");
    sliding.push_back(type == kSliding);
  }
  return sliding;
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

RopeConfig rope_of(const ConfigKeys& keys, const char* kind, const RopeForm& form,
                   int64_t max_positions) {
  const json found = rope_keys(keys, kind);
  return read_rope(ConfigKeys(found, keys.where() + ": " + kind), form, max_positions);
}

std::optional<double> read_cap(const ConfigKeys& keys, const char* key,
                               std::optional<double> fallback) {
  if (!keys.has(key)) return fallback;
  return keys.find(key) ? std::optional(keys.number(key, 0)) : std::nullopt;
}

}  // namespace

std::vector<bool> gemma_windows(int64_t layers, int64_t period) {
  std::vector<bool> sliding;
  for (int64_t i = 1; i <= layers; ++i) sliding.push_back(i % period != 0);
  return sliding;
}

void check_gemma_config(const GemmaConfig& c, std::string_view where) {
  KeyedValues<int64_t> sizes;
  for (const auto& [key, size] : kSizes) sizes.emplace_back(key, c.*size);
  check_sizes(sizes, where);
  check_rotary_heads(c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim,
                     where);
  COMPACT_CHECK(static_cast<int64_t>(c.sliding_layers.size()) == c.num_hidden_layers, where,
                ": layer_types must have ", c.num_hidden_layers,
                " entries, one of each layer, has ", c.sliding_layers.size());
  check_positive({{"rms_norm_eps", c.rms_norm_eps},
                  {"query_pre_attn_scalar", c.query_pre_attn_scalar},
                  {"attn_logit_softcapping", c.attn_logit_softcapping.value_or(1)},
                  {"final_logit_softcapping", c.final_logit_softcapping.value_or(1)},
                  {"initializer_range", c.initializer_range}},
                 where);
  check_dropouts({{"attention_dropout", c.attention_dropout}}, where);
  check_rope_config(c.rope, c.head_dim, where);
  check_rope_config(c.sliding_rope, c.head_dim, where);
  if (c.bos_token_id) check_token("bos_token_id", *c.bos_token_id, c.vocab_size, where);
  for (const int64_t id : c.eos_token_ids) check_token("eos_token_id", id, c.vocab_size, where);
  if (c.pad_token_id) check_token("pad_token_id", *c.pad_token_id, c.vocab_size, where);
}

GemmaConfig gemma_config_from_json(const json& object, std::string_view where) {
  const ConfigKeys keys(object, std::string(where));
  const std::string type = keys.text("model_type", "");
  const bool third = type == "gemma3_text";
  COMPACT_CHECK(third || type == "gemma2", where,
                ": model_type must be gemma2 or gemma3_text, is `", type, "`");
  refuse_others(keys, third);
  GemmaConfig c;
  c.head_norms = third;
  if (!third) {
    c.vocab_size = 256000, c.max_position_embeddings = 8192;
    c.attn_logit_softcapping = 50, c.final_logit_softcapping = 30;
  }
  for (const auto& [key, size] : kSizes) c.*size = keys.integer(key, c.*size);
  check_sizes({{"num_hidden_layers", c.num_hidden_layers}}, where);
  c.sliding_layers = read_layers(keys, c.num_hidden_layers, third);
  const bool slides = std::ranges::find(c.sliding_layers, true) != c.sliding_layers.end();
  COMPACT_CHECK(!slides || !keys.has("sliding_window") || keys.find("sliding_window"), where,
                ": sliding_window must be given where layer_types has ", kSliding);
  if (third) {
    c.rope = rope_of(keys, kFull, kFullForm, c.max_position_embeddings);
    c.sliding_rope = rope_of(keys, kSliding, kSlidingForm, c.max_position_embeddings);
  } else {
    c.rope = read_rope(keys, kGemma2Form, c.max_position_embeddings);
  }
  c.rms_norm_eps = keys.number("rms_norm_eps", c.rms_norm_eps);
  c.query_pre_attn_scalar = keys.number("query_pre_attn_scalar", c.query_pre_attn_scalar);
  COMPACT_CHECK(!third || !keys.find("attn_logit_softcapping"), where,
                ": attn_logit_softcapping must be null with model_type gemma3_text, which does not "
                "cap scores, is ",
                keys.find("attn_logit_softcapping")->dump());
  c.attn_logit_softcapping = read_cap(keys, "attn_logit_softcapping", c.attn_logit_softcapping);
  c.final_logit_softcapping = read_cap(keys, "final_logit_softcapping", c.final_logit_softcapping);
  c.attention_bias = keys.flag("attention_bias", false);
  c.attention_dropout = keys.number("attention_dropout", 0);
  c.tie_word_embeddings = keys.flag("tie_word_embeddings", true);
  c.initializer_range = keys.number("initializer_range", c.initializer_range);
  c.bos_token_id = keys.token("bos_token_id", c.bos_token_id);
  c.eos_token_ids = keys.tokens("eos_token_id", c.eos_token_ids);
  c.pad_token_id = keys.token("pad_token_id", c.pad_token_id);
  check_gemma_config(c, where);
  return c;
}

json gemma_config_to_json(const GemmaConfig& c, const std::string& dtype) {
  check_gemma_config(c, "config");
  json types = json::array();
  for (const bool sliding : c.sliding_layers) types.push_back(sliding ? kSliding : kFull);
  const auto cap = [](const std::optional<double>& value) { return value ? json(*value) : json(); };
  // transformers has it as an integer.
  constexpr double kMost = int64_t{1} << 53;
  const double scalar = c.query_pre_attn_scalar;
  const bool whole = scalar <= kMost && scalar == std::floor(scalar);
  json object = {
      {"architectures", json::array({c.head_norms ? "Gemma3ForCausalLM" : "Gemma2ForCausalLM"})},
      {"model_type", c.head_norms ? "gemma3_text" : "gemma2"},
      {"hidden_activation", kActivation},
      {"rms_norm_eps", c.rms_norm_eps},
      {"query_pre_attn_scalar", whole ? json(static_cast<int64_t>(scalar)) : json(scalar)},
      {"layer_types", types},
      {"attn_logit_softcapping", cap(c.attn_logit_softcapping)},
      {"final_logit_softcapping", cap(c.final_logit_softcapping)},
      {"attention_bias", c.attention_bias},
      {"attention_dropout", c.attention_dropout},
      {"tie_word_embeddings", c.tie_word_embeddings},
      {"initializer_range", c.initializer_range},
      {"bos_token_id", json_of(c.bos_token_id)},
      {"eos_token_id", json_of(c.eos_token_ids)},
      {"pad_token_id", json_of(c.pad_token_id)},
      {"use_cache", true},
      {"torch_dtype", dtype},
      {"dtype", dtype}};
  for (const auto& [key, size] : kSizes) object[key] = c.*size;
  write_rope(c.rope, c.head_norms ? kFullForm : kGemma2Form, object);
  if (c.head_norms) {
    json sliding;
    write_rope(c.sliding_rope, kSlidingForm, sliding);
    object["rope_parameters"] = {{kFull, object["rope_parameters"]},
                                 {kSliding, sliding["rope_parameters"]}};
    object["rope_local_base_freq"] = c.sliding_rope.theta;
  }
  return object;
}

}  // namespace compact
