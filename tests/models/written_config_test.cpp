// SPDX-License-Identifier: Apache-2.0
// Configurations that programs build: config.json says them, or writing it is an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/models/config_rows.h"
#include "compact/models/encoder/config.h"
#include "compact/models/gemma/gemma.h"
#include "compact/models/llama/config.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using ::testing::HasSubstr;

LlamaConfig small(const char* type) {
  return read_config<LlamaConfig>({{"model_type", type},
                                   {"hidden_size", 64},
                                   {"intermediate_size", 172},
                                   {"num_hidden_layers", 4},
                                   {"num_attention_heads", 8},
                                   {"num_key_value_heads", 2},
                                   {"head_dim", 8},
                                   {"vocab_size", 512},
                                   {"pad_token_id", nullptr}},
                                  "small");
}

// Fields that a program may set and config.json of the model type has no key for.
TEST(WrittenConfig, RefusesToWriteWhatItCannotSay) {
  using Change = void (*)(LlamaConfig&);
  const struct {
    const char *type, *field;
    Change change;
  } cases[] = {
      {"llama", "block.geglu = 1 (0 is read back)", [](auto& c) { c.block.geglu = true; }},
      {"llama", "block.softcap = 50 (0", [](auto& c) { c.block.softcap = 50; }},
      {"llama", "block.head_norms = 1", [](auto& c) { c.block.head_norms = true; }},
      {"llama", "block.residual = 0.5", [](auto& c) { c.block.residual = 0.5; }},
      {"llama", "block.scale = 0.5", [](auto& c) { c.block.scale = 0.5; }},
      {"llama", "block.out_bias = 1", [](auto& c) { c.block.out_bias = true; }},
      {"phi3", "block.qkv_parts = 3 (1", [](auto& c) { c.block.qkv_parts = 3; }},
      {"qwen2", "block.qkv_bias = 0 (1", [](auto& c) { c.block.qkv_bias = false; }},
      {"qwen2", "block.mlp_bias = 1", [](auto& c) { c.block.mlp_bias = true; }},
      {"llama", "embedding_multiplier = 12", [](auto& c) { c.embedding_multiplier = 12; }},
      {"llama", "logits_scaling = 8", [](auto& c) { c.logits_scaling = 8; }},
      {"llama", "rope_layers",
       [](auto& c) {
         c.rope_layers = {true, false, true, true};
       }},
      {"llama", "sliding_window = 7", [](auto& c) { c.sliding_window = 7; }},
      {"mistral", "sliding_layers",
       [](auto& c) {
         c.sliding_layers = {true, false, true, true};
       }},
      {"llama", "rope", [](auto& c) { c.rope.beta_fast = 3; }},
  };
  for (const auto& [type, field, change] : cases) {
    LlamaConfig c = small(type);
    change(c);
    EXPECT_THAT(
        error_of([&] { write_config(c); }),
        HasSubstr(cat("config: config.json with model_type ", type, " cannot say ", field)));
  }
  for (const double wrong : {-0.5, 0.0, std::nan("")}) {
    LlamaConfig granite = small("granite");
    granite.block.scale = wrong;
    EXPECT_THAT(error_of([&] { write_config(granite); }),
                HasSubstr("attention_multiplier must be positive and finite, is "));
  }
}

// Lists that say the same as none, or as the settings beside them, are no other network.
TEST(WrittenConfig, WritesWhatSeveralSettingsSayAlike) {
  LlamaConfig llama = small("llama"), qwen2 = small("qwen2"), plain = qwen2;
  llama.rope_layers = {true, true, true, true};
  llama.sliding_layers = {true, false, true, true};  // of no window
  EXPECT_EQ(write_config(llama), write_config(small("llama")));
  qwen2.sliding_window = 7, qwen2.sliding_layers = {false, false, false, false};
  EXPECT_EQ(write_config(qwen2), write_config(plain));
  qwen2.sliding_layers.clear();  // in all
  EXPECT_TRUE(read_config<LlamaConfig>(write_config(qwen2), "again").slides(3));
}

TEST(WrittenConfig, OfOtherFamiliesIsCompared) {
  GemmaConfig gemma = read_config<GemmaConfig>({{"model_type", "gemma2"}}, "here");
  gemma.sliding_rope.theta = 7;
  EXPECT_THAT(error_of([&] { write_config(gemma); }),
              HasSubstr("model_type gemma2 cannot say sliding_rope"));
  gemma = read_config<GemmaConfig>({{"model_type", "gemma3_text"}}, "here");
  gemma.block.geglu = false;
  EXPECT_THAT(error_of([&] { write_config(gemma); }), HasSubstr("cannot say block.geglu = 0 (1"));
  EncoderConfig bert{.hidden_size = 8,
                     .intermediate_size = 8,
                     .num_hidden_layers = 1,
                     .num_attention_heads = 1,
                     .vocab_size = 9,
                     .labels = {"a", "b"}};
  bert.classifier_dropout = -0.5;  // below 0: hidden_dropout
  EXPECT_TRUE(write_config(bert)["classifier_dropout"].is_null());
  bert.classifier_dropout = std::nan("");
  EXPECT_THAT(error_of([&] { write_config(bert); }), HasSubstr("classifier_dropout must be"));
}

}  // namespace
}  // namespace compact
