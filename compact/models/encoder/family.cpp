// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "compact/models/encoder/config_json.h"
#include "compact/models/encoder/encoder.h"
#include "compact/models/encoder/sizes.h"
#include "compact/models/families.h"

namespace compact {
namespace {

class EncoderModel final : public ModelConfig {
 public:
  explicit EncoderModel(EncoderConfig config) : c_(std::move(config)) {}
  std::unique_ptr<ModelConfig> clone() const override { return std::make_unique<EncoderModel>(c_); }

  ModelShape shape() const override {
    return {.tokens = {.vocabulary = c_.vocab_size, .bos = {}, .eos = {}},
            .length = c_.max_length(),
            .length_key = "max_position_embeddings",
            .token_types = c_.type_vocab_size,
            .classes = c_.outputs(),
            .labels = c_.labels,
            .regression = c_.regression};
  }

  void fit(const ModelShape& shape) override {
    c_.vocab_size = shape.tokens.vocabulary;
    c_.labels = shape.labels;
    c_.regression = shape.regression;
    if (shape.dropout >= 0) {
      c_.hidden_dropout = c_.attention_dropout = shape.dropout;
      c_.classifier_dropout = -1;
    }
  }

  // The first block may have a dropout that the others have not.
  void shrink() override {
    c_.num_hidden_layers = std::min<int64_t>(2, c_.num_hidden_layers);
    c_.vocab_size = std::min<int64_t>(c_.vocab_size, c_.pad_token_id + 64);
  }

  nlohmann::json to_json(const std::string& dtype) const override {
    return encoder_config_to_json(c_, dtype);
  }
  std::unique_ptr<Network> build(const Policy& policy,
                                 const NetworkOptions& options) const override {
    return std::make_unique<Encoder>(c_, policy, options);
  }

 private:
  EncoderConfig c_;
};

}  // namespace

extern const FamilyInfo encoder_family = {
    .name = "encoder",
    .types = {{"bert", ModelUse::kSequences}, {"roberta", ModelUse::kSequences}},
    .models = models_of<EncoderModel>(encoders()),
    .read = [](const nlohmann::json& config,
               std::string_view where) -> std::unique_ptr<ModelConfig> {
      return std::make_unique<EncoderModel>(encoder_config_from_json(config, where));
    },
};

}  // namespace compact
