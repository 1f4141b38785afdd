// SPDX-License-Identifier: Apache-2.0
#include "compact/io/model_weights.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compact/io/json_file.h"
#include "tests/shared_data.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kIndex = "model.safetensors.index.json";

void write_shards(const TemporaryFolder& folder) {
  write_safetensors(folder / "model-1.safetensors",
                    {{"b", at::full({2}, 2.0f)}, {"a", at::full({1}, 1.0f)}});
  write_safetensors(folder / "model-2.safetensors",
                    {{"c", at::full({3}, 3.0f)}, {"hidden", at::ones({1})}});
  write_json(folder / kIndex, {{"metadata", {{"total_size", 24}}},
                               {"weight_map",
                                {{"a", "model-1.safetensors"},
                                 {"b", "model-1.safetensors"},
                                 {"c", "model-2.safetensors"}}}});
}

TEST(ModelWeights, OneFileOrItsFolder) {
  const TemporaryFolder folder;
  write_model_folder(folder.path(), {{"b", at::ones({2})}, {"a", at::zeros({1})}},
                     {{"model_type", "llama"}});
  EXPECT_THAT(folder.names(), ElementsAre("config.json", "model.safetensors"));
  for (const auto& path : {folder.path(), folder / "model.safetensors"}) {
    const ModelWeights weights(path);
    EXPECT_THAT(weights.names(), ElementsAre("b", "a"));
    EXPECT_TRUE(at::equal(weights.read("b"), at::ones({2})));
    EXPECT_THAT(error_of([&] { weights.read("z"); }), HasSubstr("has no tensor `z`"));
  }
}

TEST(ModelWeights, Shards) {
  const TemporaryFolder folder;
  write_shards(folder);
  const ModelWeights weights(folder.path());
  EXPECT_THAT(weights.names(), ElementsAre("b", "a", "c"));
  EXPECT_TRUE(at::equal(weights.read("c"), at::full({3}, 3.0f)));
  EXPECT_FALSE(weights.contains("hidden"));
  at::Tensor half = at::empty({2}, at::kBFloat16);
  weights.read_into("b", half, Cast::kAllow);
  EXPECT_TRUE(at::equal(half, at::full({2}, 2.0, at::kBFloat16)));
}

TEST(ModelWeights, BadIndexes) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { ModelWeights(folder.path()); }),
              HasSubstr(": must have model.safetensors or"));
  EXPECT_THAT(error_of([&] { ModelWeights(folder / "none"); }), HasSubstr("No such file"));
  write_shards(folder);
  const auto index_error = [&](const json& index) {
    write_json(folder / kIndex, index);
    return error_of([&] { ModelWeights weights(folder.path()); });
  };
  const auto map_error = [&](const json& map) { return index_error({{"weight_map", map}}); };
  EXPECT_THAT(index_error(json::array()), HasSubstr("`weight_map`"));
  EXPECT_THAT(map_error(json::object()), HasSubstr("`weight_map`"));
  EXPECT_THAT(map_error({{"a", 1}}), HasSubstr("must be a file name, is 1"));
  EXPECT_THAT(map_error({{"a", "../model-1.safetensors"}}), HasSubstr("same folder"));
  EXPECT_THAT(map_error({{"a", "model-1.bin"}}), HasSubstr(".safetensors file"));
  EXPECT_THAT(map_error({{"a", "model-3.safetensors"}}),
              AllOf(HasSubstr("model-3.safetensors"), HasSubstr("No such file")));
  EXPECT_THAT(map_error({{"a", "model-2.safetensors"}}), HasSubstr("must hold tensor `a`"));
  EXPECT_EQ(map_error({{"a", "model-1.safetensors"}}), "");
}

TEST(ModelWeights, PublishedFiles) {
  const std::filesystem::path path = shared_data("pretrained/stories260K/stories260K.safetensors");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "needs " << path;
  const ModelWeights weights(path);
  EXPECT_EQ(weights.entry("layers.0.attention.wk.weight").shape, (std::vector<int64_t>{32, 64}));
  for (const std::string& name : weights.names()) {
    EXPECT_TRUE(at::isfinite(weights.read(name)).all().item<bool>()) << name;
  }
}

}  // namespace
}  // namespace compact
