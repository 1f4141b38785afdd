// SPDX-License-Identifier: Apache-2.0
#include "compact/models/llama/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compact/io/json_file.h"
#include "compact/models/config_rows.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

json minimal() {
  return {{"model_type", "llama"},  {"hidden_size", 64},        {"intermediate_size", 172},
          {"num_hidden_layers", 5}, {"num_attention_heads", 8}, {"vocab_size", 512}};
}

json with(const json& change) {
  json value = minimal();
  value.update(change);
  return value;
}

LlamaConfig parse(const json& value) { return read_config<LlamaConfig>(value, "here"); }

TEST(HfConfig, DefaultsAreThoseOfTransformers) {
  const LlamaConfig config = parse(minimal());
  EXPECT_EQ(config.block.kv_heads, 8);
  EXPECT_EQ(config.block.head_dim, 8);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_EQ(config.block.eps, 1e-6);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_EQ(config.initializer_range, 0.02);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.eos_token_ids, std::vector<int64_t>{2});
  const LlamaConfig none = parse(with({{"bos_token_id", nullptr}, {"eos_token_id", nullptr}}));
  EXPECT_FALSE(none.bos_token_id);
  EXPECT_TRUE(none.eos_token_ids.empty());
}

TEST(HfConfig, ReadsTheFormsOfBothVersions) {
  LlamaConfig config = parse(with({{"rope_theta", 500000.0},
                                   {"rope_scaling", nullptr},
                                   {"torch_dtype", "bfloat16"},
                                   {"num_key_value_heads", 4},
                                   {"head_dim", nullptr},
                                   {"eos_token_id", {2, 3}},
                                   {"bos_token_id", 1}}));
  EXPECT_EQ(config.rope.theta, 500000.0);
  EXPECT_EQ(config.block.kv_heads, 4);
  EXPECT_EQ(config.block.head_dim, 8);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{2, 3}));
  config = parse(with({{"rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "default"}}},
                       {"dtype", "float16"},
                       {"head_dim", 16},
                       {"tie_word_embeddings", true}}));
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.block.head_dim, 16);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(parse(with({{"rope_scaling", {{"type", "default"}}}})).rope.theta, 10000.0);
}

TEST(HfConfig, RefusesWithKeyRuleAndValue) {
  const struct {
    json change;
    const char* message;
  } cases[] = {
      {{{"model_type", "gpt2"}},
       "here: model_type must be one of llama, mistral, qwen2, qwen3, phi3, smollm3, granite, "
       "olmo2, is `gpt2`"},
      {{{"model_type", nullptr}}, ", olmo2, is ``"},
      {{{"hidden_act", "gelu"}}, "hidden_act must be silu, is `gelu`"},
      {{{"attention_bias", 1}}, "attention_bias must be true or false, is 1"},
      {{{"mlp_bias", 1}}, "mlp_bias must be true or false, is 1"},
      {{{"attention_dropout", 1.0}}, "attention_dropout must be at least 0 and below 1, is 1"},
      {{{"resid_pdrop", 0.1}}, "resid_pdrop must be 0, is 0.1"},
      {{{"quantization_config", {{"bits", 4}}}}, "quantization_config is {\"bits\":4}"},
      {{{"rope_scaling", "linear"}}, "rope_scaling: must be a JSON object"},
      {{{"partial_rotary_factor", 0.5}}, "partial_rotary_factor must be 1 with this model_type"},
      {{{"dtype", "float16"}, {"torch_dtype", "bfloat16"}}, "must agree"},
      {{{"dtype", "float8"}}, "torch_dtype must be float32, bfloat16 or float16, is `float8`"},
      {{{"hidden_size", 0}}, "hidden_size must be from 1 to 2147483647, is 0"},
      {{{"hidden_size", -64}}, "hidden_size must be from 1"},
      {{{"hidden_size", 64.0}}, "hidden_size must be an integer below 2^63, is 64.0"},
      {{{"hidden_size", "64"}}, "must be an integer"},
      {{{"hidden_size", 18446744073709551615u}}, "must be an integer below 2^63"},
      {{{"hidden_size", nullptr}}, "hidden_size must be given"},
      {{{"vocab_size", int64_t{1} << 31}}, "vocab_size must be from 1"},
      {{{"num_attention_heads", 0}}, "num_attention_heads must be from 1"},
      {{{"num_attention_heads", 7}}, "multiple of num_attention_heads, is 64 with 7"},
      {{{"num_key_value_heads", 3}}, "multiple of num_key_value_heads, is 8 with 3"},
      {{{"num_attention_heads", 64}}, "head_dim must be even, is 1"},
      {{{"rms_norm_eps", 0}}, "rms_norm_eps must be positive"},
      {{{"rope_theta", -1}}, "rope_theta must be positive"},
      {{{"rope_theta", "x"}}, "rope_theta must be a number, is \"x\""},
      {{{"bos_token_id", 512}}, "bos_token_id must be from 0 to vocab_size - 1 = 511, is 512"},
      {{{"eos_token_id", {1, -1}}}, "eos_token_id must be from 0"},
      {{{"eos_token_id", "a"}}, "eos_token_id must be an integer"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(error_of([&] { parse(with(c.change)); }), HasSubstr(c.message)) << c.change;
  }
  EXPECT_THAT(error_of([&] { parse(json::array()); }), HasSubstr("must be a JSON object"));
}

TEST(HfConfig, WritesWhatItReads) {
  json written;
  for (const json& change :
       {json::object(), json{{"eos_token_id", 2}, {"bos_token_id", 1}, {"head_dim", 32}},
        json{{"eos_token_id", {2, 3}},
             {"rope_theta", 5e5},
             {"rms_norm_eps", 1e-5},
             {"tie_word_embeddings", true},
             {"torch_dtype", "bfloat16"}}}) {
    const LlamaConfig config = parse(with(change));
    written = write_config(config);
    EXPECT_EQ(parse(written), config);
  }
  EXPECT_EQ(written["architectures"], json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(written["rope_parameters"]["rope_theta"], written["rope_theta"]);
  EXPECT_EQ(error_of([] { write_config(LlamaConfig()); }).substr(0, 19), "config: hidden_size");
  LlamaConfig smollm3 = parse(with({{"model_type", "smollm3"}}));
  smollm3.rope_layers = {true};
  EXPECT_THAT(error_of([&] { write_config(smollm3); }),
              HasSubstr("no_rope_layers must have 5 entries, one of each layer, has 1"));
}

}  // namespace
}  // namespace compact
