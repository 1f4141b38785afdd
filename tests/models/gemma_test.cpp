// SPDX-License-Identifier: Apache-2.0
// The properties of Gemma beside the duties of every family (families_test.cpp, hf_parity.py).
#include "compact/models/gemma/gemma.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/models/config_rows.h"
#include "tests/models/tiny_decoder.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

GemmaConfig tiny_gemma(bool third) {
  GemmaConfig c{.block = gemma_block(third, 24, 40, 4, 2, 6),
                .num_hidden_layers = 3,
                .vocab_size = 37,
                .max_position_embeddings = 20,
                .query_pre_attn_scalar = 6,
                .sliding_window = 5,
                .sliding_layers = {true, false, true},
                .initializer_range = 0.3,
                .bos_token_id = {},
                .eos_token_ids = {},
                .pad_token_id = 3};
  if (!third) c.block.softcap = 2, c.final_logit_softcapping = 3;
  return c;
}

TEST(Gemma, TokenByTokenEqualsTheWholeSequence) {
  for (const bool third : {false, true}) {
    expect_decoder_equals_whole(Gemma(tiny_gemma(third), Policy(), kTinyOptions),
                                third ? " gemma 3" : " gemma 2");
  }
}

TEST(Gemma, PoliciesWithoutLossGiveTheSameBits) {
  for (const bool third : {false, true}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      NetworkOptions options = kTinyOptions;
      options.dtype = type;
      expect_same_bits_without_loss(
          [&](const Policy& p) { return std::make_unique<Gemma>(tiny_gemma(third), p, options); },
          cat(" ", third, " ", at::toString(type)));
    }
  }
}

TEST(Gemma, RowsOfSamplesEqualSamplesAlone) {
  for (const bool third : {false, true}) {
    expect_rows_equal_samples_alone(
        [&](const Policy& p) {
          return std::make_unique<Gemma>(tiny_gemma(third), p, kTinyOptions);
        },
        third ? " gemma 3" : " gemma 2");
  }
}

// A window as long as the sequences is none.
TEST(Gemma, OnlyWindowsThatAreShorterDiffer) {
  GemmaConfig c = tiny_gemma(true);
  const at::Tensor ids = tiny_ids(1, 15);
  c.sliding_window = 20;
  const at::Tensor whole = Gemma(c, Policy(), kTinyOptions).logits(ids);
  c.sliding_window = 15;
  EXPECT_TRUE(at::allclose(Gemma(c, Policy(), kTinyOptions).logits(ids), whole, 1e-5, 1e-6));
  c.sliding_window = 14;
  EXPECT_FALSE(at::allclose(Gemma(c, Policy(), kTinyOptions).logits(ids), whole, 1e-3, 1e-3));
}

TEST(Gemma, ReadsBothFormsOfPositions) {
  const json published = {{"model_type", "gemma3_text"},
                          {"head_dim", 256},
                          {"hidden_size", 1152},
                          {"intermediate_size", 6912},
                          {"num_attention_heads", 4},
                          {"num_hidden_layers", 26},
                          {"num_key_value_heads", 1},
                          {"rope_local_base_freq", 10000},
                          {"rope_scaling", nullptr},
                          {"rope_theta", 1000000},
                          {"sliding_window", 512},
                          {"sliding_window_pattern", 6},
                          {"vocab_size", 262144},
                          {"max_position_embeddings", 32768},
                          {"attn_logit_softcapping", nullptr}};
  const GemmaConfig c = read_config<GemmaConfig>(published, "here");
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.sliding_rope.theta, 1e4);
  EXPECT_EQ(std::ranges::count(c.sliding_layers, false), 4);
  EXPECT_FALSE(c.sliding_layers[5] || c.sliding_layers[23]);
  EXPECT_EQ(c.eos_token_ids, std::vector<int64_t>{1});
  EXPECT_EQ(read_config<GemmaConfig>(write_config(c), "there"), c);
  // The scaling was meant for the layers without a window.
  json scaled = published;
  scaled["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  const GemmaConfig far = read_config<GemmaConfig>(scaled, "here");
  EXPECT_EQ(far.rope.kind, RopeKind::kLinear);
  EXPECT_EQ(far.sliding_rope, RopeConfig{});
  EXPECT_EQ(read_config<GemmaConfig>(write_config(far), "there"), far);
  // A number that no integer holds stays what it is.
  json odd = write_config(c);
  odd["query_pre_attn_scalar"] = 1e300;
  EXPECT_EQ(write_config(read_config<GemmaConfig>(odd, "here")).at("query_pre_attn_scalar"), 1e300);
  // Gemma 2 caps where nothing is said.
  const GemmaConfig second = read_config<GemmaConfig>({{"model_type", "gemma2"}}, "here");
  EXPECT_EQ(second.block.softcap, 50);
  EXPECT_EQ(second.final_logit_softcapping, 30);
  EXPECT_EQ(second.rope.theta, 1e4);
}

TEST(Gemma, RefusesWithKeyRuleAndValue) {
  const struct {
    bool third;
    json change;
    const char* message;
  } cases[] = {
      {true, {{"hidden_activation", "gelu"}}, "hidden_activation must be gelu_pytorch_tanh, is"},
      {false, {{"hidden_act", "silu"}}, "hidden_act must be gelu_pytorch_tanh, is `silu`"},
      {false, {{"is_causal", false}}, "is_causal must be true with model_type gemma2, is false"},
      {true, {{"is_causal", false}}, "is_causal must be true with model_type gemma3_text, is"},
      {true, {{"per_layer_config", {{"1", {{"sliding_window", 5}}}}}}, "per_layer_config must be"},
      {true, {{"use_bidirectional_attention", true}}, "use_bidirectional_attention must be false"},
      {true, {{"sliding_window", nullptr}}, "sliding_window must be given where layer_types has"},
      {true, {{"sliding_window", 0}}, "sliding_window must be from 1"},
      {false, {{"layer_types", {"full_attention"}}}, "layer_types must have 3 entries"},
      {false, {{"layer_types", {"a", "b", "c"}}}, "layer_types must be full_attention or"},
      {false, {{"attn_logit_softcapping", 0}}, "attn_logit_softcapping must be"},
      {false, {{"final_logit_softcapping", -1}}, "final_logit_softcapping must be"},
      {false, {{"num_hidden_layers", 2147483647}}, "num_hidden_layers must be from 1 to 4096"},
      {false, {{"query_pre_attn_scalar", 0}}, "query_pre_attn_scalar must be"},
      {true, {{"rope_parameters", {{"rope_theta", 3}}}}, "rope_parameters must have full_att"},
      {true, {{"attn_logit_softcapping", 5}}, "attn_logit_softcapping must be null with model"},
      {false, {{"head_dim", 5}}, "head_dim must be even, is 5"},
      {false, {{"num_key_value_heads", 3}}, "must be a multiple of num_key_value_heads"},
  };
  for (const auto& [third, change, message] : cases) {
    json config = write_config(tiny_gemma(third));
    config.update(change);
    EXPECT_THAT(error_of([&] { read_config<GemmaConfig>(config, "here"); }), HasSubstr(message));
  }
}

}  // namespace
}  // namespace compact
