// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/models/families.h"
#include "compact/models/gpt2/gpt2.h"

namespace compact {
namespace {

class Gpt2Model final : public ModelConfig {
 public:
  explicit Gpt2Model(Gpt2Config config) : c_(std::move(config)) {}
  std::unique_ptr<ModelConfig> clone() const override { return std::make_unique<Gpt2Model>(c_); }

  ModelShape shape() const override {
    return {.tokens = c_.tokens(),
            .length = c_.n_positions,
            .length_key = "n_positions",
            .attention = {.head_dim = c_.n_embd / c_.n_head, .dropout = c_.attn_pdrop}};
  }
  void fit(const ModelShape& shape) override {
    c_.vocab_size = shape.tokens.vocabulary;
    c_.bos_token_id = shape.tokens.bos;
    c_.eos_token_ids = shape.tokens.eos;
    c_.n_positions = shape.length;
    if (shape.dropout >= 0) c_.embd_pdrop = c_.resid_pdrop = c_.attn_pdrop = shape.dropout;
  }
  void shrink() override {
    c_.n_layer = 1;
    c_.vocab_size = 64;
    c_.bos_token_id.reset();
    c_.eos_token_ids.clear();
  }
  nlohmann::json to_json(const std::string& dtype) const override {
    return gpt2_config_to_json(c_, dtype);
  }
  std::unique_ptr<Network> build(const Policy& policy,
                                 const NetworkOptions& options) const override {
    return std::make_unique<Gpt2>(c_, policy, options);
  }

 private:
  Gpt2Config c_;
};

ModelInfo gpt2(const char* name, int64_t width, int64_t layers, int64_t heads) {
  Gpt2Config c{.n_embd = width, .n_layer = layers, .n_head = heads, .n_inner = 4 * width};
  c.embd_pdrop = c.resid_pdrop = c.attn_pdrop = 0;
  return {name,
          cat("hidden ", width, ", MLP ", 4 * width, ", ", layers, " layers, ", heads, " heads"),
          std::make_shared<const Gpt2Model>(c)};
}

}  // namespace

extern const FamilyInfo gpt2_family = {
    .name = "gpt2",
    .types = {{"gpt2", ModelUse::kTokens}},
    .models = {gpt2("gpt2", 768, 12, 12), gpt2("gpt2-medium", 1024, 24, 16),
               gpt2("gpt2-large", 1280, 36, 20), gpt2("gpt2-xl", 1600, 48, 25)},
    .read = [](const nlohmann::json& config,
               std::string_view where) -> std::unique_ptr<ModelConfig> {
      return std::make_unique<Gpt2Model>(gpt2_config_from_json(config, where));
    },
};

}  // namespace compact
