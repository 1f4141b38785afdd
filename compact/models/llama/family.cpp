// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "compact/models/families.h"
#include "compact/models/llama/config_json.h"
#include "compact/models/llama/llama.h"
#include "compact/models/llama/model_types.h"
#include "compact/models/llama/sizes.h"

namespace compact {
namespace {

class LlamaModel final : public ModelConfig {
 public:
  explicit LlamaModel(LlamaConfig config) : c_(std::move(config)) {}
  std::unique_ptr<ModelConfig> clone() const override { return std::make_unique<LlamaModel>(c_); }

  ModelShape shape() const override {
    return {.tokens = c_.tokens(),
            .length = longest_sequence(c_),
            .length_key = "max_position_embeddings",
            .attention = {.head_dim = c_.head_dim,
                          .dropout = c_.attention_dropout,
                          .window = c_.sliding_window.value_or(0)}};
  }

  void fit(const ModelShape& shape) override {
    if (shape.dropout >= 0) c_.attention_dropout = shape.dropout;
    c_.vocab_size = shape.tokens.vocabulary;
    c_.bos_token_id = shape.tokens.bos;
    c_.eos_token_ids = shape.tokens.eos;
    c_.pad_token_id = shape.tokens.pad;
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
    c_.vocab_size = 64;
    c_.bos_token_id.reset();
    c_.eos_token_ids.clear();
    c_.pad_token_id.reset();
  }

  nlohmann::json to_json(const std::string& dtype) const override {
    LlamaConfig written = c_;
    written.torch_dtype = dtype;
    return llama_config_to_json(written);
  }
  std::unique_ptr<Network> build(const Policy& policy,
                                 const NetworkOptions& options) const override {
    return std::make_unique<Llama>(c_, policy, options);
  }

 private:
  LlamaConfig c_;
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
    .read = [](const nlohmann::json& config,
               std::string_view where) -> std::unique_ptr<ModelConfig> {
      return std::make_unique<LlamaModel>(llama_config_from_json(config, where));
    },
};

}  // namespace compact
