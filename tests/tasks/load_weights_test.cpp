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

}  // namespace
}  // namespace compact
