// SPDX-License-Identifier: Apache-2.0
#include "compact/models/llama/config_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "compact/base/check.h"
#include "compact/base/model_numbers.h"
#include "compact/io/config_keys.h"
#include "compact/models/llama/model_types.h"

namespace compact {
namespace {

using nlohmann::json;

// Which layers turn queries and keys: 1 in no_rope_layers, or all but each
// no_rope_layer_interval-th.
std::vector<bool> read_rope_layers(const ConfigKeys& keys, int64_t layers) {
  std::vector<bool> turn;
  if (const json* list = keys.find("no_rope_layers")) {
    COMPACT_CHECK(list->is_array(), keys.where(), ": no_rope_layers must be a list, is ",
                  list->dump());
    COMPACT_CHECK(static_cast<int64_t>(list->size()) >= layers, keys.where(),
                  ": no_rope_layers must have an entry of each of ", layers, " layers, has ",
                  list->size());
    for (const json& one : *list) {
      COMPACT_CHECK(one == 0 || one == 1, keys.where(),
                    ": no_rope_layers must have 1 where a layer "
                    "has rotary positions and 0 where it has none, has ",
                    one.dump());
      if (static_cast<int64_t>(turn.size()) < layers) turn.push_back(one == 1);
    }
  } else {
    const int64_t interval = keys.integer("no_rope_layer_interval", 4);
    COMPACT_CHECK(interval >= 1, keys.where(), ": no_rope_layer_interval must be at least 1, is ",
                  interval);
    for (int64_t i = 0; i < layers; ++i) turn.push_back((i + 1) % interval != 0);
  }
  const bool all = std::ranges::find(turn, false) == turn.end();
  return all ? std::vector<bool>() : turn;
}

// Layers whose tokens attend no further than the window.
std::vector<bool> read_window_layers(const ConfigKeys& keys, const DecoderFamily& family,
                                     const LlamaConfig& c) {
  std::vector<bool> sliding;
  if (const json* types = keys.find("layer_types")) {
    COMPACT_CHECK(types->is_array() && static_cast<int64_t>(types->size()) == c.num_hidden_layers,
                  keys.where(), ": layer_types must be a list of ", c.num_hidden_layers,
                  " entries, one of each layer, is ", types->dump());
    for (const json& type : *types) {
      COMPACT_CHECK(type == "full_attention" || type == "sliding_attention", keys.where(),
                    ": layer_types must be full_attention or sliding_attention, has ", type.dump());
      sliding.push_back(type == "sliding_attention");
    }
    return sliding;
  }
  const int64_t first = keys.integer("max_window_layers", family.window_layers);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    sliding.push_back(c.sliding_window && (family.window_layers > 0 ? i >= first : !c.turns(i)));
  }
  return sliding;
}

void read_window(const ConfigKeys& keys, const DecoderFamily& family, LlamaConfig& c) {
  if (family.window == AttentionWindow::kNone) return;
  const bool on =
      family.window == AttentionWindow::kAlways || keys.flag("use_sliding_window", false);
  if (on && keys.find("sliding_window")) {
    c.sliding_window = keys.integer("sliding_window", 0);
  } else if (on && !keys.has("sliding_window")) {
    c.sliding_window = family.window_size;
  }
  if (family.window == AttentionWindow::kAlways) return;
  const std::vector<bool> sliding = read_window_layers(keys, family, c);
  const bool any = std::ranges::find(sliding, true) != sliding.end();
  COMPACT_CHECK(!any || c.sliding_window, keys.where(),
                ": layer_types has sliding_attention, but use_sliding_window with sliding_window "
                "does not say how far");
  if (any) {
    c.sliding_layers = sliding;
  } else {
    c.sliding_window.reset();
  }
}

void write_window(const LlamaConfig& c, const DecoderFamily& family, json& object) {
  if (family.window == AttentionWindow::kNone) return;
  object["sliding_window"] = c.sliding_window ? json(*c.sliding_window) : json();
  if (family.window == AttentionWindow::kAlways) return;
  object["use_sliding_window"] = c.sliding_window.has_value();
  const auto layers = static_cast<size_t>(c.num_hidden_layers);
  std::vector<bool> sliding = c.sliding_layers;
  sliding.resize(layers, c.sliding_window.has_value());
  json types = json::array();
  for (const bool one : sliding) types.push_back(one ? "sliding_attention" : "full_attention");
  object["layer_types"] = types;
  if (family.window_layers > 0) {
    object["max_window_layers"] = std::ranges::find(sliding, true) - sliding.begin();
  }
}

std::string read_dtype(const ConfigKeys& keys) {
  std::string type;
  for (const char* key : {"dtype", "torch_dtype"}) {
    std::string value = keys.text(key, "");
    if (value.starts_with("torch.")) value = value.substr(6);
    COMPACT_CHECK(type.empty() || value.empty() || type == value, keys.where(),
                  ": dtype and torch_dtype must agree, are `", type, "` and `", value, "`");
    if (!value.empty()) type = value;
  }
  return type.empty() ? LlamaConfig{}.torch_dtype : type;
}

// What a class has where the key is missing, unless the model is smaller than that.
std::optional<int64_t> usual(std::optional<int64_t> token, int64_t words) {
  return token < words ? token : std::nullopt;
}

std::optional<int64_t> read_pad(const ConfigKeys& keys, const DecoderFamily& family,
                                int64_t words) {
  const std::optional<int64_t> id = keys.token("pad_token_id", usual(family.pad, words));
  return id < 0 && id >= -words ? *id + words : id;  // counted from the end, as in torch
}

}  // namespace

LlamaConfig llama_config_from_json(const json& object, std::string_view where) {
  const ConfigKeys keys(object, std::string(where));
  const DecoderFamily& family = decoder_family(keys.text("model_type", ""), where);
  refuse_unsupported(keys, family);
  const LlamaConfig defaults;
  LlamaConfig config;
  config.model_type = family.type;
  config.hidden_size = keys.required_integer("hidden_size");
  config.intermediate_size = keys.required_integer("intermediate_size");
  config.num_hidden_layers = keys.required_integer("num_hidden_layers");
  config.num_attention_heads = keys.required_integer("num_attention_heads");
  config.vocab_size = keys.required_integer("vocab_size");
  check_sizes({{"num_hidden_layers", config.num_hidden_layers},
               {"num_attention_heads", config.num_attention_heads},
               {"vocab_size", config.vocab_size}},
              where);
  const int64_t heads = config.num_attention_heads;
  const bool says_kv = keys.has("num_key_value_heads") || family.kv_heads == 0;
  config.num_key_value_heads =
      keys.integer("num_key_value_heads", says_kv ? heads : family.kv_heads);
  config.head_dim =
      keys.integer("head_dim", family.head_dim > 0 ? family.head_dim : config.hidden_size / heads);
  config.max_position_embeddings = keys.integer("max_position_embeddings", family.positions);
  config.rms_norm_eps = keys.number("rms_norm_eps", family.eps);
  config.rope = read_rope(keys, family.rope, config.max_position_embeddings);
  if (family.some_turn) config.rope_layers = read_rope_layers(keys, config.num_hidden_layers);
  const bool biases = family.biases && keys.flag("attention_bias", false);
  config.qkv_bias = biases || family.qkv_bias;
  config.out_bias = biases;
  config.mlp_bias = family.mlp_biases && keys.flag("mlp_bias", false);
  config.head_norms = family.head_norms;
  read_window(keys, family, config);
  if (family.multipliers) {
    config.embedding_multiplier = keys.number("embedding_multiplier", 1);
    config.residual_multiplier = keys.number("residual_multiplier", 1);
    config.attention_multiplier = keys.number("attention_multiplier", 1);
    config.logits_scaling = keys.number("logits_scaling", 1);
  }
  config.attention_dropout = keys.number("attention_dropout", 0);
  config.fused_names = family.fused;
  config.tie_word_embeddings = keys.flag("tie_word_embeddings", family.tied);
  config.initializer_range = keys.number("initializer_range", defaults.initializer_range);
  config.bos_token_id = keys.token("bos_token_id", usual(family.bos, config.vocab_size));
  const std::optional<int64_t> eos = usual(family.eos, config.vocab_size);
  config.eos_token_ids =
      keys.tokens("eos_token_id", eos ? std::vector<int64_t>{*eos} : std::vector<int64_t>());
  config.pad_token_id = read_pad(keys, family, config.vocab_size);
  config.torch_dtype = read_dtype(keys);
  check_llama_config(config, where);
  return config;
}

json llama_config_to_json(const LlamaConfig& config) {
  check_llama_config(config, "config");
  const DecoderFamily& family = decoder_family(config.model_type, "config");
  json object = {
      {"architectures", json::array({family.architecture})},
      {"model_type", family.type},
      {"hidden_act", "silu"},
      {"attention_dropout", config.attention_dropout},
      {"use_cache", true},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_key_value_heads},
      {"vocab_size", config.vocab_size},
      {"max_position_embeddings", config.max_position_embeddings},
      {"rms_norm_eps", config.rms_norm_eps},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"initializer_range", config.initializer_range},
      {"bos_token_id", json_of(config.bos_token_id)},
      {"eos_token_id", json_of(config.eos_token_ids)},
      {"torch_dtype", config.torch_dtype},
      {"dtype", config.torch_dtype},
  };
  write_rope(config.rope, family.rope, object);
  write_window(config, family, object);
  if (config.model_type == "llama") object["pretraining_tp"] = 1;
  const bool usual_width = config.head_dim * config.num_attention_heads == config.hidden_size;
  if (family.says_head_dim || !usual_width) object["head_dim"] = config.head_dim;
  if (family.biases) object["attention_bias"] = config.qkv_bias;
  if (family.mlp_biases) object["mlp_bias"] = config.mlp_bias;
  if (family.pad || config.pad_token_id) object["pad_token_id"] = json_of(config.pad_token_id);
  if (family.some_turn) {
    json turn = json::array();
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) turn.push_back(config.turns(i) ? 1 : 0);
    object["no_rope_layers"] = turn;
  }
  if (family.multipliers) {
    object["embedding_multiplier"] = config.embedding_multiplier;
    object["residual_multiplier"] = config.residual_multiplier;
    object["attention_multiplier"] = config.attention_multiplier.value_or(1);
    object["logits_scaling"] = config.logits_scaling;
  }
  return object;
}

}  // namespace compact
