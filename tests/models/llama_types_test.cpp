// SPDX-License-Identifier: Apache-2.0
// config.json of the model types beside llama, as they come from Hugging Face; what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/models/config_rows.h"
#include "compact/models/llama/config.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

LlamaConfig config_of(const json& value) { return read_config<LlamaConfig>(value, "here"); }

json small(const std::string& type, const json& change = json::object()) {
  json value = {{"model_type", type},     {"hidden_size", 64},        {"intermediate_size", 172},
                {"num_hidden_layers", 4}, {"num_attention_heads", 8}, {"num_key_value_heads", 2},
                {"head_dim", 8},          {"vocab_size", 512},        {"pad_token_id", nullptr}};
  value.update(change);
  return value;
}

// Keys that transformers 4 wrote; config_exchange.py has files of all types as transformers 5 does.
TEST(HfFamily, ReadsPublishedFiles) {
  const LlamaConfig llama = config_of(json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})"));
  const RopeConfig want{
      .kind = RopeKind::kLlama3, .theta = 5e5, .factor = 32, .original_length = 8192};
  EXPECT_EQ(llama.rope, want);
  EXPECT_EQ(llama.eos_token_ids.size(), 3U);
  EXPECT_EQ(longest_sequence(llama), 131072);

  json phi4 = json::parse(R"({
    "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "bos_token_id": 199999,
    "embd_pdrop": 0.0, "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu",
    "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192,
    "interpolate_factor": 1, "lm_head_bias": false, "max_position_embeddings": 131072,
    "mlp_bias": false, "model_type": "phi3", "num_attention_heads": 24, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "original_max_position_embeddings": 4096, "pad_token_id": 199999,
    "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
    "rope_scaling": {"type": "longrope"}, "rope_theta": 10000.0, "sliding_window": 262144,
    "tie_word_embeddings": true, "vocab_size": 200064})");
  phi4["rope_scaling"]["short_factor"] = std::vector<double>(48, 1);
  phi4["rope_scaling"]["long_factor"] = std::vector<double>(48, 2.5);
  const LlamaConfig phi = config_of(phi4);
  EXPECT_EQ(phi.rope.kind, RopeKind::kLongrope);
  EXPECT_EQ(phi.rope.partial, 0.75);
  EXPECT_EQ(phi.rope.original_length, 4096);
  EXPECT_EQ(phi.pad_token_id, 199999);
  EXPECT_EQ(phi.block.qkv_parts, 1);
  for (const char* name : {"su", "yarn"}) {  // as longrope was called
    phi4["rope_scaling"]["type"] = name;
    EXPECT_EQ(config_of(phi4), phi);
  }
}

TEST(HfFamily, DefaultsAreThoseOfTheClass) {
  const auto without = [](const std::string& type, std::initializer_list<const char*> keys) {
    json value = small(type, {{"num_attention_heads", 32}, {"hidden_size", 64}});
    for (const char* key : keys) value.erase(key);
    return config_of(value);
  };
  EXPECT_EQ(without("llama", {"num_key_value_heads"}).block.kv_heads, 32);
  EXPECT_EQ(without("mistral", {"num_key_value_heads"}).block.kv_heads, 8);
  EXPECT_EQ(without("qwen3", {"head_dim"}).block.head_dim, 128);
  EXPECT_EQ(without("qwen2", {"head_dim"}).block.head_dim, 2);
  EXPECT_EQ(without("mistral", {}).sliding_window, 4096);
  EXPECT_EQ(config_of(small("mistral", {{"sliding_window", nullptr}})).sliding_window,
            std::nullopt);
  EXPECT_EQ(without("phi3", {}).sliding_window, std::nullopt);
  EXPECT_EQ(without("phi3", {}).block.eps, 1e-5);
  EXPECT_EQ(without("phi3", {"pad_token_id"}).pad_token_id, std::nullopt);  // beyond 512
  EXPECT_EQ(without("smollm3", {}).rope.theta, 2e6);
  EXPECT_EQ(without("smollm3", {}).rope_layers, (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(without("granite", {}).block.scale, 1);
  EXPECT_EQ(without("olmo2", {"rms_norm_eps"}).block.eps, 1e-5);
  const LlamaConfig window = config_of(small(
      "qwen2", {{"use_sliding_window", true}, {"sliding_window", 99}, {"max_window_layers", 3}}));
  EXPECT_EQ(window.sliding_window, 99);
  EXPECT_EQ(window.sliding_layers, (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(config_of(small("qwen2", {{"sliding_window", 99}})).sliding_window, std::nullopt);
  EXPECT_EQ(config_of(small("qwen2", {{"use_sliding_window", true}})).sliding_window,
            std::nullopt);  // from layer 28 on
  EXPECT_EQ(config_of(small("llama", {{"pad_token_id", -1}})).pad_token_id, 511);
  // As transformers 5 reads it: beside the object that says the type.
  const LlamaConfig beside = config_of(small("qwen3", {{"original_max_position_embeddings", 96},
                                                       {"rope_scaling", {{"rope_type", "yarn"}}}}));
  EXPECT_EQ(beside.rope.original_length, 96);
  // So does Phi-3's default of 4096.
  const json longrope = {{"rope_type", "longrope"},
                         {"short_factor", {1, 1, 1, 1}},
                         {"long_factor", {1, 2, 3, 4}},
                         {"original_max_position_embeddings", 64}};
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    EXPECT_EQ(config_of(small("phi3", {{key, longrope}})).rope.original_length, 4096);
  }
  // The settings inside the object override older ones beside it.
  const LlamaConfig stale = config_of(
      small("qwen3",
            {{"rope_theta", 3.0},
             {"rope_parameters",
              {{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 2}, {"rope_theta", 7.0}}}}));
  EXPECT_EQ(stale.rope.theta, 7);
  EXPECT_EQ(stale.rope.kind, RopeKind::kLinear);
}

json scaled(const json& rope) { return {{"rope_scaling", rope}}; }

TEST(HfFamily, RefusesWithKeyRuleAndValue) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  const json yarn = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  const json longrope = {{"rope_type", "longrope"},
                         {"short_factor", {1, 1, 1, 1}},
                         {"long_factor", {1, 2, 3, 4}},
                         {"original_max_position_embeddings", 64}};
  const auto but = [](json rope, const char* key, const json& value) {
    rope[key] = value;
    return scaled(rope);
  };
  const auto less = [](json rope, const char* key) {
    rope.erase(key);
    return scaled(rope);
  };
  const struct {
    const char* type;
    json change;
    const char* message;
  } cases[] = {
      {"llama", scaled({{"rope_type", "proportional"}}), "rope_type: no such type of rotary"},
      {"llama", scaled({{"rope_type", "linear"}}), "factor must be given with rope_type linear"},
      {"llama", scaled({{"rope_type", "linear"}, {"factor", 0.5}}), "factor must be finite and at"},
      {"llama", scaled({{"rope_type", "linear"}, {"factor", -2}}), "at least 1, is -2"},
      {"llama", scaled({{"rope_type", "linear"}, {"factor", "2"}}), "factor must be a number"},
      {"llama", scaled({{"rope_type", "linear"}, {"factor", 2}, {"beta_fast", 3}}),
       "rope_scaling: beta_fast is not a setting of rope_type linear, is 3"},
      {"llama", scaled({{"mrope_section", {1, 2}}}),
       "mrope_section is not a setting of rope_type def"},
      {"llama",
       {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}},
        {"rope_parameters", {{"rope_type", "linear"}, {"factor", 3}}}},
       "rope_scaling and rope_parameters must agree"},
      {"llama",
       {{"rope_scaling", yarn}, {"original_max_position_embeddings", 65}},
       "original_max_position_embeddings must be given once, is 64 and 65"},
      {"llama", {{"original_max_position_embeddings", 0}}, "must be from 2 to 2147483647, is 0"},
      {"llama", {{"is_causal", false}}, "is_causal must be true with model_type llama, is false"},
      {"llama", less(llama3, "low_freq_factor"), "rope_scaling: low_freq_factor must be given"},
      {"llama", less(llama3, "factor"), "factor must be given with rope_type llama3"},
      {"llama", but(llama3, "high_freq_factor", 1.0), "high_freq_factor must be above low_freq_fa"},
      {"llama", but(llama3, "low_freq_factor", -1), "low_freq_factor must be positive"},
      {"llama", but(llama3, "original_max_position_embeddings", 0), "must be from 2 to 2147483647"},
      {"llama", but(llama3, "original_max_position_embeddings", 1e300), "must be an integer below"},
      {"llama", but(yarn, "beta_slow", 40), "beta_fast must be at least beta_slow 40, is 32"},
      {"llama", but(yarn, "truncate", 1), "truncate must be true or false, is 1"},
      {"llama", but(yarn, "mscale", -1), "mscale must be finite and at least 0, is -1"},
      {"llama", but(yarn, "attention_factor", 0), "attention_factor must be positive"},
      {"llama", but(yarn, "rope_theta", 1), "rope_theta must be above 1 with rope_type yarn"},
      {"llama", less(longrope, "short_factor"), "short_factor must be given"},
      {"llama", but(longrope, "short_factor", {1, 2, 3}), "short_factor must have 4 numbers, half"},
      {"llama", but(longrope, "long_factor", {1, 2, 3, 0}), "long_factor must be positive"},
      {"llama", but(longrope, "long_factor", {1, 2, 3, "x"}), "long_factor must be a list of numb"},
      {"llama", {{"sliding_window", 64}}, "sliding_window must be null with model_type llama"},
      {"llama",
       {{"layer_types", {"full_attention", "sliding_attention"}}},
       "layer_types must be full_attention with model_type llama, has \"sliding_attention\""},
      {"llama", {{"residual_multiplier", 0.5}}, "residual_multiplier must be 1 with model_type ll"},
      {"llama", {{"attention_multiplier", 1.0}}, "attention_multiplier must be null"},
      {"llama", {{"no_rope_layers", {1, 0}}}, "no_rope_layers must be null"},
      {"llama", {{"final_logit_softcapping", 30.0}}, "final_logit_softcapping must be null"},
      {"llama", {{"pad_token_id", 512}}, "pad_token_id must be from 0 to vocab_size - 1 = 511"},
      {"mistral", {{"attention_bias", true}}, "attention_bias must be false with model_type mist"},
      {"mistral",
       {{"layer_types", {"full_attention", "full_attention"}}, {"sliding_window", 4}},
       "sliding_window must be null with model_type mistral, is 4"},
      {"qwen3", {{"per_layer_config", {{"1", {{"rms_norm_eps", 0.5}}}}}}, "must be empty, since"},
      {"mistral", {{"sliding_window", 0}}, "sliding_window must be from 1 to 2147483647, is 0"},
      {"mistral", {{"sliding_window", -5}}, "sliding_window must be from 1"},
      {"mistral", {{"sliding_window", "no"}}, "sliding_window must be an integer"},
      {"qwen2", {{"mlp_bias", true}}, "mlp_bias must be false with model_type qwen2"},
      {"qwen2", {{"use_mrope", true}}, "use_mrope must be false with model_type qwen2, is true"},
      {"qwen2", {{"layer_types", {"full_attention"}}}, "layer_types must be a list of 4 entries"},
      {"qwen2", {{"layer_types", {"a", "b", "c", "d"}}}, "or sliding_attention, has \"a\""},
      {"qwen2",
       {{"layer_types",
         {"full_attention", "sliding_attention", "full_attention", "full_attention"}}},
       "layer_types has sliding_attention, but use_sliding_window"},
      {"qwen3", {{"use_sliding_window", "yes"}}, "use_sliding_window must be true or false"},
      {"qwen3", {{"head_dim", 7}}, "head_dim must be even, is 7"},
      {"phi3", {{"partial_rotary_factor", 0.4}}, "must be even and at least 2 wide, is 3 of 8"},
      {"phi3", {{"partial_rotary_factor", 1.5}}, "partial_rotary_factor must be above 0 and at m"},
      {"phi3", {{"partial_rotary_factor", 0}}, "partial_rotary_factor must be above 0"},
      {"phi3", {{"resid_pdrop", 0.1}}, "resid_pdrop must be 0, is 0.1"},
      {"phi3", {{"lm_head_bias", true}}, "lm_head_bias must be false with model_type phi3"},
      {"phi3", scaled({{"type", "linear"}, {"factor", 2.0}}),
       "default or longrope with model_type"},
      {"phi3", {{"original_max_position_embeddings", -4}}, "original_max_position_embeddings must"},
      {"smollm3", {{"no_rope_layers", {1, 0}}}, "no_rope_layers must have an entry of each of 4"},
      {"smollm3", {{"no_rope_layers", {1, 0, 2, 1}}}, "and 0 where it has none, has 2"},
      {"smollm3", {{"no_rope_layers", 3}}, "no_rope_layers must be a list, is 3"},
      {"smollm3", {{"no_rope_layer_interval", 0}}, "no_rope_layer_interval must be at least 1"},
      {"olmo2", {{"clip_qkv", 8.0}}, "clip_qkv must be null with model_type olmo2, is 8.0"},
      {"olmo2", {{"mlp_bias", true}}, "mlp_bias must be false with model_type olmo2"},
      {"granite", {{"logits_scaling", 0}}, "logits_scaling must be positive"},
      {"granite", {{"attention_multiplier", -1}}, "attention_multiplier must be positive"},
      {"granite", {{"embedding_multiplier", "12"}}, "embedding_multiplier must be a number"},
  };
  for (const auto& c : cases) {
    const std::string said = error_of([&] { config_of(small(c.type, c.change)); });
    EXPECT_THAT(said, HasSubstr(c.message)) << c.type << " " << c.change;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
    EXPECT_TRUE(said.empty() || said.starts_with("here: ")) << said;
  }
}

// Every setting of every model type, read again from what is written of it.
TEST(HfFamily, WritesWhatItReads) {
  const json rope = {{"rope_type", "longrope"},
                     {"short_factor", {1, 1, 1}},
                     {"long_factor", {1, 2, 3.5}},
                     {"attention_factor", 1.25}};
  for (const json& value :
       {small("llama", {{"attention_bias", true}, {"mlp_bias", true}, {"pad_token_id", 3}}),
        small("llama", scaled({{"type", "dynamic"}, {"factor", 2.0}})),
        small("mistral", {{"sliding_window", 77}}), small("qwen2"),
        small("qwen2", {{"use_sliding_window", true}, {"max_window_layers", 2}}),
        small("qwen3", {{"attention_bias", true}, {"head_dim", 16}}),
        small("phi3", {{"partial_rotary_factor", 0.75},
                       {"rope_scaling", rope},
                       {"original_max_position_embeddings", 32},
                       {"sliding_window", 2047}}),
        small("smollm3", {{"no_rope_layers", {0, 1, 1, 0, 1}}, {"tie_word_embeddings", false}}),
        small("granite", {{"embedding_multiplier", 12.0}, {"attention_multiplier", 0.5}}),
        small("olmo2", {{"attention_bias", true}, {"num_key_value_heads", 2}})}) {
    const LlamaConfig config = config_of(value);
    const json written = write_config(config);
    EXPECT_EQ(read_config<LlamaConfig>(written, "again"), config) << written;
    EXPECT_EQ(written["model_type"], value["model_type"]);
  }
}

// The written keys of a LLaMA stay the same.
TEST(HfFamily, KeysOfALlamaStay) {
  std::string keys;
  const json written = write_config(config_of(small("llama")));
  for (const auto& [key, value] : written.items()) {
    keys += key + " ";
  }
  EXPECT_EQ(keys,
            "architectures attention_bias attention_dropout bos_token_id dtype eos_token_id "
            "head_dim hidden_act hidden_size initializer_range intermediate_size "
            "max_position_embeddings mlp_bias model_type num_attention_heads num_hidden_layers "
            "num_key_value_heads pretraining_tp rms_norm_eps rope_parameters rope_theta "
            "tie_word_embeddings torch_dtype use_cache vocab_size ");
}

}  // namespace
}  // namespace compact
