// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "compact/base/check.h"
#include "compact/models/encoder/encoder.h"
#include "compact/models/family_model.h"

namespace compact {
namespace {

class EncoderModel final : public FamilyModel<EncoderModel, EncoderConfig, Encoder> {
 public:
  using FamilyModel::FamilyModel;

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

  // The first block may have a dropout that the others lack.
  void shrink() override {
    c_.num_hidden_layers = std::min<int64_t>(2, c_.num_hidden_layers);
    c_.vocab_size = std::min<int64_t>(c_.vocab_size, c_.pad_token_id + 64);
  }
};

ModelInfo sized(const char* name, int64_t hidden, int64_t layers, int64_t heads, EncoderConfig c) {
  c.hidden_size = hidden;
  c.intermediate_size = 4 * hidden;
  c.num_hidden_layers = layers;
  c.num_attention_heads = heads;
  return {name,
          cat("hidden ", hidden, ", MLP ", 4 * hidden, ", ", layers, " layers, ", heads, " heads"),
          std::make_shared<const EncoderModel>(c)};
}
ModelInfo bert(const char* name, int64_t hidden, int64_t layers, int64_t heads) {
  return sized(name, hidden, layers, heads, {.vocab_size = 30522});
}
ModelInfo roberta(const char* name, int64_t hidden, int64_t layers, int64_t heads) {
  return sized(name, hidden, layers, heads,
               {.kind = EncoderKind::kRoberta,
                .vocab_size = 50265,
                .max_position_embeddings = 514,
                .type_vocab_size = 1,
                .pad_token_id = 1,
                .layer_norm_eps = 1e-5});
}

}  // namespace

extern const FamilyInfo encoder_family = {
    .name = "encoder",
    .types = {{"bert", ModelUse::kSequences}, {"roberta", ModelUse::kSequences}},
    .models = {bert("bert-tiny", 128, 2, 2), bert("minilm-l6", 384, 6, 12),
               bert("bert-base", 768, 12, 12), bert("bert-large", 1024, 24, 16),
               roberta("roberta-base", 768, 12, 12), roberta("roberta-large", 1024, 24, 16)},
    .read = &EncoderModel::read,
};

}  // namespace compact
