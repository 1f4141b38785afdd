// SPDX-License-Identifier: Apache-2.0
#include "compact/io/hf_config.h"

#include <nlohmann/json.hpp>
#include <string>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/io/config_keys.h"
#include "compact/io/json_file.h"

namespace compact {
namespace {

using nlohmann::json;

void refuse_unsupported(const ConfigKeys& keys) {
  const std::string type = keys.text("model_type", "");
  COMPACT_CHECK(type == "llama", keys.where(), ": model_type must be llama, is `", type, "`");
  const std::string activation = keys.text("hidden_act", "silu");
  COMPACT_CHECK(activation == "silu", keys.where(), ": hidden_act must be silu, is `", activation,
                "`");
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    COMPACT_CHECK(!keys.flag(key, false), keys.where(), ": ", key, " must be false, is true");
  }
  const double dropout = keys.number("attention_dropout", 0);
  COMPACT_CHECK(dropout == 0, keys.where(), ": attention_dropout must be 0, is ", dropout);
  keys.refuse_quantized();
}

// Rotary positions without scaling, wherever the version of transformers puts them.
void check_rope(const ConfigKeys& rope) {
  for (const char* key : {"rope_type", "type"}) {
    const std::string type = rope.text(key, "default");
    COMPACT_CHECK(type == "default", rope.where(), ": ", key, " must be default (no scaling), is `",
                  type, "`");
  }
  const double partial = rope.number("partial_rotary_factor", 1);
  COMPACT_CHECK(partial == 1, rope.where(), ": partial_rotary_factor must be 1, is ", partial);
}

double read_rope_theta(const ConfigKeys& keys) {
  double theta = LlamaConfig{}.rope_theta;
  const char* given = nullptr;
  const auto take = [&](const ConfigKeys& from) {
    if (!from.find("rope_theta")) return;
    const double value = from.number("rope_theta", 0);
    COMPACT_CHECK(!given || value == theta, from.where(), ": rope_theta must be given once, is ",
                  theta, " and ", value);
    theta = value;
    given = "rope_theta";
  };
  check_rope(keys);
  take(keys);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (const json* value = keys.find(key)) {
      const ConfigKeys inner(*value, keys.where() + ": " + key);
      check_rope(inner);
      take(inner);
    }
  }
  return theta;
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

std::vector<int64_t> read_eos(const ConfigKeys& keys) {
  std::vector<int64_t> ids;
  const json* value = keys.find("eos_token_id");
  if (!value) return ids;
  if (!value->is_array()) return {keys.integer_of(*value, "eos_token_id")};
  for (const json& id : *value) ids.push_back(keys.integer_of(id, "eos_token_id"));
  return ids;
}

}  // namespace

LlamaConfig llama_config_from_json(const json& object, std::string_view where) {
  const ConfigKeys keys(object, std::string(where));
  refuse_unsupported(keys);
  const LlamaConfig defaults;
  LlamaConfig config;
  config.hidden_size = keys.required_integer("hidden_size");
  config.intermediate_size = keys.required_integer("intermediate_size");
  config.num_hidden_layers = keys.required_integer("num_hidden_layers");
  config.num_attention_heads = keys.required_integer("num_attention_heads");
  config.vocab_size = keys.required_integer("vocab_size");
  config.num_key_value_heads = keys.integer("num_key_value_heads", config.num_attention_heads);
  const bool divides = config.num_attention_heads > 0;
  config.head_dim =
      keys.integer("head_dim", divides ? config.hidden_size / config.num_attention_heads : 1);
  config.max_position_embeddings =
      keys.integer("max_position_embeddings", defaults.max_position_embeddings);
  config.rms_norm_eps = keys.number("rms_norm_eps", defaults.rms_norm_eps);
  config.rope_theta = read_rope_theta(keys);
  config.tie_word_embeddings = keys.flag("tie_word_embeddings", defaults.tie_word_embeddings);
  config.initializer_range = keys.number("initializer_range", defaults.initializer_range);
  if (keys.find("bos_token_id")) config.bos_token_id = keys.integer("bos_token_id", 0);
  config.eos_token_ids = read_eos(keys);
  config.torch_dtype = read_dtype(keys);
  check_llama_config(config, where);
  return config;
}

LlamaConfig read_llama_config(const std::filesystem::path& path) {
  const std::filesystem::path file = is_folder(path) ? path / "config.json" : path;
  return llama_config_from_json(read_json(file), file.string());
}

json llama_config_to_json(const LlamaConfig& config) {
  check_llama_config(config, "config");
  json eos;
  if (config.eos_token_ids.size() == 1) eos = config.eos_token_ids[0];
  if (config.eos_token_ids.size() > 1) eos = config.eos_token_ids;
  return {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"mlp_bias", false},
      {"use_cache", true},
      {"pretraining_tp", 1},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_key_value_heads},
      {"head_dim", config.head_dim},
      {"vocab_size", config.vocab_size},
      {"max_position_embeddings", config.max_position_embeddings},
      {"rms_norm_eps", config.rms_norm_eps},
      {"rope_theta", config.rope_theta},
      {"rope_parameters", {{"rope_theta", config.rope_theta}, {"rope_type", "default"}}},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"initializer_range", config.initializer_range},
      {"bos_token_id", config.bos_token_id ? json(*config.bos_token_id) : json()},
      {"eos_token_id", eos},
      {"torch_dtype", config.torch_dtype},
      {"dtype", config.torch_dtype},
  };
}

}  // namespace compact
