// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "compact/models/family_model.h"
#include "compact/models/llama/llama.h"
#include "compact/models/llama/model_types.h"
#include "compact/models/llama/sizes.h"

namespace compact {
namespace {

class LlamaModel final : public FamilyModel<LlamaModel, LlamaConfig, Llama> {
 public:
  using FamilyModel::FamilyModel;

  ModelShape shape() const override {
    return {.tokens = c_.tokens(),
            .length = longest_sequence(c_),
            .length_key = "max_position_embeddings",
            .attention = {.head_dim = c_.block.head_dim,
                          .dropout = c_.block.attention_dropout,
                          .window = c_.sliding_window.value_or(0)}};
  }

  void fit(const ModelShape& shape) override {
    if (shape.dropout >= 0) c_.block.attention_dropout = shape.dropout;
    set_tokens(shape.tokens);
    if (shape.length > longest_sequence(c_)) {
      c_.max_position_embeddings = std::max(c_.max_position_embeddings, shape.length);
    }
  }

  // A block of each kind, in the order in which they come: one that turns queries and keys or does
  // not, in a window or to all.
  void shrink() override {
    std::vector<std::pair<bool, bool>> kinds;
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) {
      const std::pair kind(c_.turns(i), c_.slides(i));
      if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
    }
    c_.num_hidden_layers = static_cast<int64_t>(kinds.size());
    c_.rope_layers.clear(), c_.sliding_layers.clear();
    for (const auto& [turns, slides] : kinds) {
      c_.rope_layers.push_back(turns);
      if (c_.sliding_window) c_.sliding_layers.push_back(slides);
    }
    set_tokens({.vocabulary = 64});
  }
};

std::vector<std::pair<std::string, ModelUse>> llama_types() {
  std::vector<std::pair<std::string, ModelUse>> types;
  for (const DecoderFamily& f : decoder_families()) types.emplace_back(f.type, ModelUse::kTokens);
  return types;
}

}  // namespace

extern const FamilyInfo llama_family = {
    .name = "llama",
    .types = llama_types(),
    .models = models_of<LlamaModel>(llamas()),
    .read = &LlamaModel::read,
};

}  // namespace compact
