// SPDX-License-Identifier: Apache-2.0
// The properties of GPT-2 beside the duties of every family (families_test.cpp, hf_parity.py).
#include "compact/models/gpt2/gpt2.h"

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

Gpt2Config tiny_gpt2(double dropout) {
  return {.n_embd = 24,
          .n_layer = 3,
          .n_head = 4,
          .n_inner = 40,
          .vocab_size = 37,
          .n_positions = 20,
          .embd_pdrop = dropout,
          .resid_pdrop = dropout,
          .attn_pdrop = dropout,
          .scale_attn_by_inverse_layer_idx = true,
          .initializer_range = 0.3,
          .bos_token_id = {},
          .eos_token_ids = {}};
}

TEST(Gpt2, TokenByTokenEqualsTheWholeSequence) {
  for (const double dropout : {0.0, 0.1}) {
    expect_decoder_equals_whole(Gpt2(tiny_gpt2(dropout), Policy(), kTinyOptions),
                                cat(" ", dropout));
  }
}

TEST(Gpt2, PoliciesWithoutLossGiveTheSameBits) {
  expect_same_bits_without_loss(
      [](const Policy& p) { return std::make_unique<Gpt2>(tiny_gpt2(0.2), p, kTinyOptions); }, "");
}

// Learned positions begin at 0 in each sample.
TEST(Gpt2, RowsOfSamplesEqualSamplesAlone) {
  expect_rows_equal_samples_alone(
      [](const Policy& p) { return std::make_unique<Gpt2>(tiny_gpt2(0), p, kTinyOptions); }, "");
}

TEST(Gpt2, DropoutIsDrawnInTrainingAlone) {
  const at::NoGradGuard no_grad;
  const auto losses = [](const Gpt2Config& config, bool training) {
    const Gpt2 model(config, Policy(), kTinyOptions);
    const at::Tensor ids = tiny_ids(2, 12);
    const auto of = [&](uint64_t noise) {
      return model.loss({ids}, ids, {.noise = noise, .training = training}).item<double>();
    };
    return std::pair(of(1), of(2));
  };
  const auto [a, b] = losses(tiny_gpt2(0.2), false);
  EXPECT_EQ(a, b);
  for (double Gpt2Config::*one :
       {&Gpt2Config::embd_pdrop, &Gpt2Config::resid_pdrop, &Gpt2Config::attn_pdrop}) {
    Gpt2Config config = tiny_gpt2(0);
    config.*one = 0.2;
    const auto [c, d] = losses(config, true);
    EXPECT_NE(c, d);
  }
}

TEST(Gpt2, MatricesHaveTheShapesOfTheFile) {
  const Gpt2 model(tiny_gpt2(0), Policy(), kTinyOptions);
  bool found = false;
  for (const auto& [name, t] : model.named_tensors()) {
    if (name != "transformer.h.1.attn.c_attn.weight") continue;
    found = true;
    EXPECT_EQ(t.sizes(), (at::IntArrayRef{24, 72}));
    const auto bare = [](const std::string& n) { return n == "h.1.attn.c_attn.weight"; };
    EXPECT_EQ(model.found_name(name, bare), "h.1.attn.c_attn.weight");
  }
  EXPECT_TRUE(found);
}

TEST(Gpt2, ReadsTheOtherNamesOfSizes) {
  const json config = {{"model_type", "gpt2"},   {"hidden_size", 32},
                       {"num_hidden_layers", 2}, {"num_attention_heads", 2},
                       {"n_layer", 2},           {"max_position_embeddings", 64}};
  const Gpt2Config c = read_config<Gpt2Config>(config, "here");
  EXPECT_EQ(c.n_embd, 32);
  EXPECT_EQ(c.n_layer, 2);
  EXPECT_EQ(c.n_head, 2);
  EXPECT_EQ(c.n_positions, 64);
  EXPECT_EQ(c.n_inner, 128);
  EXPECT_EQ(c.bos_token_id, 50256);
  // In a smaller model there is no such token.
  json small = config;
  small.update({{"vocab_size", 257}, {"bos_token_id", 50256}, {"eos_token_id", 50256}});
  EXPECT_FALSE(read_config<Gpt2Config>(small, "here").bos_token_id);
  EXPECT_TRUE(read_config<Gpt2Config>(small, "here").eos_token_ids.empty());
}

TEST(Gpt2, RefusesWithKeyRuleAndValue) {
  const json whole = write_config(tiny_gpt2(0.1));
  const struct {
    json change;
    const char* message;
  } cases[] = {
      {{{"num_attention_heads", 6}}, "n_head and num_attention_heads must agree, are 4 and 6"},
      {{{"n_head", 5}}, "n_embd must be a multiple of n_head, is 24 with 5 heads"},
      {{{"activation_function", "relu"}}, "activation_function must be gelu, gelu_new or"},
      {{{"add_cross_attention", true}}, "add_cross_attention must be false, is true"},
      {{{"is_causal", false}}, "is_causal must be true with model_type gpt2, is false"},
      {{{"attn_pdrop", 1.0}}, "attn_pdrop must be at least 0 and below 1, is 1"},
      {{{"eos_token_id", 37}}, "eos_token_id must be from 0 to vocab_size - 1 = 36, is 37"},
      {{{"sliding_window", 4}}, "sliding_window must be null with model_type gpt2, is 4"},
  };
  for (const auto& [change, message] : cases) {
    json config = whole;
    config.update(change);
    EXPECT_THAT(error_of([&] { read_config<Gpt2Config>(config, "here"); }), HasSubstr(message));
  }
  Gpt2Config config = tiny_gpt2(0);
  EXPECT_THROW(Gpt2(config, Policy(), {.max_length = 21}), InputError);
}

}  // namespace
}  // namespace compact
