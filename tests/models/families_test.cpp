// SPDX-License-Identifier: Apache-2.0
// The duties of every family of the table.
#include "compact/models/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "compact/base/check.h"
#include "compact/base/named.h"
#include "compact/io/json_file.h"
#include "compact/networks/network.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A model as data leave it: the smallest of its kind.
std::unique_ptr<ModelConfig> fitted(const ModelInfo& info, bool whole_graphs = false) {
  std::unique_ptr<ModelConfig> model = info.config->clone();
  model->shrink();
  ModelShape shape = model->shape();
  shape.whole_graphs = whole_graphs;
  if (shape.channels > 0) {
    shape.mean.assign(static_cast<size_t>(shape.channels), 0.5);
    shape.deviation.assign(static_cast<size_t>(shape.channels), 0.25);
    shape.hidden = 8;
  }
  if (shape.tokens.vocabulary > 0 && shape.attention.head_dim == 0) shape.labels = {"no", "yes"};
  model->fit(shape);
  return model;
}

class Families : public ::testing::TestWithParam<std::string> {
 protected:
  const FamilyInfo& family() const { return named(families(), GetParam(), "no family"); }
};

TEST_P(Families, HaveTypesAndModelsOfTheirOwn) {
  EXPECT_FALSE(family().types.empty());
  EXPECT_FALSE(family().models.empty());
  for (const FamilyInfo* other : families()) {
    if (other == &family()) continue;
    for (const auto& [type, use] : family().types) {
      for (const auto& [others, its_use] : other->types) EXPECT_NE(type, others);
    }
    for (const ModelInfo& m : family().models) {
      for (const ModelInfo& n : other->models) EXPECT_NE(m.name, n.name);
    }
  }
}

TEST_P(Families, ModelsAreFoundByNameForEachUse) {
  for (const auto& [type, use] : family().types) {
    for (const ModelInfo& m : family().models) {
      EXPECT_EQ(&model_named(m.name, use), &m);
      EXPECT_FALSE(m.summary.empty()) << m.name;
    }
  }
}

// A new model reads with any tokenizer.
TEST_P(Families, TakeTheVocabularyOfData) {
  for (const ModelInfo& m : family().models) {
    const std::unique_ptr<ModelConfig> model = m.config->clone();
    ModelShape shape = model->shape();
    if (shape.tokens.vocabulary == 0) continue;
    shape.tokens = {.vocabulary = 257, .bos = {}, .eos = {256}};
    if (shape.attention.head_dim == 0) shape.labels = {"no", "yes"};
    model->fit(shape);
    EXPECT_EQ(model->shape().tokens.vocabulary, 257) << m.name;
    EXPECT_EQ(model->to_json("float32")["vocab_size"], 257) << m.name;
  }
}

TEST_P(Families, ReadWhatTheyWrite) {
  for (const ModelInfo& m : family().models) {
    const json written = fitted(m)->to_json("float32");
    EXPECT_EQ(family().read(written, "again")->to_json("float32"), written) << m.name;
  }
}

TEST_P(Families, TheirOwnShapeChangesNothing) {
  for (const ModelInfo& m : family().models) {
    const auto model = fitted(m);
    const json before = model->to_json("float32");
    model->fit(model->shape());
    EXPECT_EQ(model->to_json("float32"), before) << m.name;
  }
}

// One field missing, of another type, negative, huge: one line that begins with the file.
TEST_P(Families, RefuseBrokenFields) {
  for (const auto& [type, use] : family().types) {
    const bool graphs = use == ModelUse::kGraphs;
    const json whole = fitted(family().models[0], graphs)->to_json("float32");
    int refused = 0;
    for (const auto& [key, value] : whole.items()) {
      const json others[] = {"text",
                             -1,
                             1e300,
                             json::array({1, "x"}),
                             json::object({{"a", 1}}),
                             -0.5,
                             true,
                             std::numeric_limits<int32_t>::max(),  // of which nothing is allocated
                             std::numeric_limits<int64_t>::max()};
      for (const json& other : others) {
        json broken = whole;
        broken[key] = other;
        const std::string error = error_of([&] {
          const auto read = family().read(broken, "here");
          read->shape();
          read->to_json("float32");
        });
        if (error.empty()) continue;
        ++refused;
        EXPECT_TRUE(error.starts_with("here: ")) << key << " = " << other << ": " << error;
        EXPECT_EQ(error.find('\n'), error.npos) << error;
      }
      json without = whole;
      without.erase(key);
      const std::string error = error_of([&] { family().read(without, "here"); });
      EXPECT_TRUE(error.empty() || error.starts_with("here: ")) << error;
    }
    EXPECT_GT(refused, 20) << type;
  }
}

TEST_P(Families, BuildWhatTheySay) {
  for (const auto& [type, use] : family().types) {
    const auto model = fitted(family().models[0], use == ModelUse::kGraphs);
    const auto network = model->build(Policy(), {.max_length = 16, .seed = 1});
    EXPECT_GT(network->parameter_count(), 0);
    std::set<std::string> names;
    for (const auto& [name, tensor] : network->named_tensors()) {
      EXPECT_TRUE(names.insert(name).second) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Families, ::testing::ValuesIn(names_of(families())),
                         [](const auto& info) { return info.param; });

TEST(FamilyTable, SaysWhatAModelIsFor) {
  EXPECT_THAT(error_of([] { model_named("llama-61m", ModelUse::kTokens); }),
              HasSubstr("did you mean `llama-60m`"));
  EXPECT_EQ(error_of([] { model_named("bert-base", ModelUse::kTokens); }),
            "model `bert-base` is for classes of sequences, not for next tokens");
}

TEST(FamilyTable, ErrorsNameTheFile) {
  const TemporaryFolder folder;
  const std::string file = (folder / "config.json").string();
  const auto error = [&](ModelUse use) {
    return error_of([&] { read_model(folder.path(), use); });
  };
  EXPECT_THAT(error(ModelUse::kTokens), AllOf(HasSubstr("config.json"), HasSubstr("No such file")));
  write_json(folder / "config.json", {{"model_type", "gru"}});
  EXPECT_THAT(error(ModelUse::kTokens), HasSubstr(file + ": model_type is `gru`; known: llama"));
  write_json(folder / "config.json", {{"model_type", "bert"}});
  EXPECT_THAT(error(ModelUse::kTokens),
              HasSubstr(file + ": model_type `bert` is for classes of sequences, not for next "
                               "tokens; for these are llama"));
  EXPECT_THAT(error(ModelUse::kSequences), HasSubstr(file + ": hidden_size must be given"));
  write_json(folder / "config.json", json::array());
  EXPECT_THAT(error(ModelUse::kTokens), HasSubstr(file + ": model_type must be given, as a text"));
}

TEST(FamilyTable, ResnetsOfTransformersKeepTheirForm) {
  const FamilyInfo& family = named(families(), "resnet", "no family");
  const json sound = {{"model_type", "resnet"},     {"depths", {1, 2}},
                      {"layer_type", "bottleneck"}, {"embedding_size", 8},
                      {"hidden_sizes", {32, 64}},   {"id2label", {{"0", "cat"}, {"1", "dog"}}}};
  const auto model = family.read(sound, "here");
  const ModelShape shape = model->shape();
  EXPECT_EQ(shape.labels, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(shape.height, 224);
  EXPECT_EQ(shape.mean[0], 0.485);
  const json written = model->to_json("float32");
  EXPECT_EQ(written["hidden_sizes"], sound["hidden_sizes"]);
  EXPECT_EQ(family.read(written, "again")->to_json("float32"), written);
  EXPECT_EQ(model->files().count("preprocessor_config.json"), 1U);
  const std::pair<json, const char*> cases[] = {
      {{{"hidden_sizes", {32, 96}}}, "hidden_sizes must be [32,64] with embedding_size 8, are [32"},
      {{{"layer_type", "wide"}}, "layer_type must be basic or bottleneck, is `wide`"},
      {{{"downsample_in_bottleneck", true}}, "downsample_in_bottleneck must be false, is true"},
      {{{"embedding_size", -1}}, "embedding_size must be from 1"},
      {{{"hidden_act", "gelu"}}, "hidden_act must be relu, is `gelu`"},
  };
  for (const auto& [change, message] : cases) {
    json config = sound;
    config.update(change);
    EXPECT_THAT(error_of([&] { family.read(config, "here"); }), HasSubstr(message));
  }
}

}  // namespace
}  // namespace compact
