// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/load_weights.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/io/model_weights.h"
#include "compact/models/llama/llama.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

// A file may have a head beside the embedding that it is tied to: the same one.
TEST(LoadWeights, ATiedHeadOfItsOwnIsRefused) {
  const LlamaConfig shape{.block = block_shape(8, 12, 2, 2, 4),
                          .num_hidden_layers = 1,
                          .vocab_size = 11,
                          .tie_word_embeddings = true};
  Llama model(shape, Policy(), {.max_length = 8, .seed = 1});
  const TemporaryFolder folder;
  auto tensors = model.named_tensors();
  tensors.emplace_back("lm_head.weight", model.embedding().weight.detach().clone());
  write_model_folder(folder.path(), tensors, nlohmann::json::object());
  EXPECT_TRUE(load_weights(model, folder.path()).warnings.empty());
  tensors.back().second.select(0, 3).add_(1);
  write_model_folder(folder.path(), tensors, nlohmann::json::object());
  EXPECT_THAT(error_of([&] { load_weights(model, folder.path()); }),
              ::testing::HasSubstr("`lm_head.weight` and `model.embed_tokens.weight` differ, but"));
}

// LlamaModel as transformers saves it: names without `model.`, and no head.
TEST(LoadWeights, AModelWithoutItsHead) {
  for (const bool tied : {true, false}) {
    LlamaConfig shape{
        .block = block_shape(8, 12, 2, 2, 4), .num_hidden_layers = 2, .vocab_size = 11};
    shape.tie_word_embeddings = tied;
    const Llama model(shape, Policy(), {.max_length = 8, .seed = 1});
    auto tensors = model.named_tensors();
    std::erase_if(tensors, [](const auto& t) { return t.first == "lm_head.weight"; });
    for (auto& [name, tensor] : tensors) name = name.substr(std::string("model.").size());
    const TemporaryFolder folder;
    write_model_folder(folder.path(), tensors, nlohmann::json::object());
    Llama other(shape, Policy(), {.max_length = 8, .seed = 2});
    if (!tied) {
      EXPECT_THAT(error_of([&] { load_weights(other, folder.path()); }),
                  ::testing::HasSubstr("has no head `lm_head.weight`, and config.json does not"));
      continue;
    }
    const LoadedWeights loaded = load_weights(other, folder.path());
    EXPECT_TRUE(loaded.warnings.empty());
    EXPECT_TRUE(loaded.fresh.empty());
    const auto want = model.named_tensors(), got = other.named_tensors();
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(at::equal(got[i].second, want[i].second)) << want[i].first;
    }
  }
}

}  // namespace
}  // namespace compact
