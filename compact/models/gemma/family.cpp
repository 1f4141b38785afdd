// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "compact/base/check.h"
#include "compact/models/family_model.h"
#include "compact/models/gemma/gemma.h"

namespace compact {
namespace {

class GemmaModel final : public FamilyModel<GemmaModel, GemmaConfig, Gemma> {
 public:
  using FamilyModel::FamilyModel;

  ModelShape shape() const override {
    const bool slides = std::ranges::find(c_.sliding_layers, true) != c_.sliding_layers.end();
    return {.tokens = c_.tokens(),
            .length = c_.max_position_embeddings,
            .length_key = "max_position_embeddings",
            .attention = {.head_dim = c_.block.head_dim,
                          .dropout = c_.block.attention_dropout,
                          .softcap = c_.block.softcap,
                          .window = slides ? c_.sliding_window : 0}};
  }
  void fit(const ModelShape& shape) override {
    if (shape.dropout >= 0) c_.block.attention_dropout = shape.dropout;
    set_tokens(shape.tokens);
    c_.max_position_embeddings = shape.length;
  }
  // A block of each kind, in the order in which they come.
  void shrink() override {
    std::vector<bool> kinds;
    for (const bool slides : c_.sliding_layers) {
      if (std::ranges::find(kinds, slides) == kinds.end()) kinds.push_back(slides);
    }
    c_.num_hidden_layers = static_cast<int64_t>(kinds.size());
    c_.sliding_layers = kinds;
    set_tokens({.vocabulary = 64});
  }
};

ModelInfo gemma(const char* name, GemmaConfig c, int64_t period) {
  c.sliding_layers = gemma_windows(c.num_hidden_layers, period);
  c.bos_token_id.reset(), c.eos_token_ids.clear(), c.pad_token_id.reset();
  const BlockShape& b = c.block;
  return {name,
          cat("hidden ", b.hidden, ", MLP ", b.intermediate, ", ", c.num_hidden_layers, " layers, ",
              b.heads, " heads, ", b.kv_heads, " of keys and values"),
          std::make_shared<const GemmaModel>(c)};
}

GemmaConfig second(int64_t hidden, int64_t mlp, int64_t layers, int64_t heads) {
  GemmaConfig c{.block = gemma_block(false, hidden, mlp, heads, heads / 2),
                .num_hidden_layers = layers,
                .vocab_size = 256000,
                .max_position_embeddings = 8192,
                .rope = {},
                .final_logit_softcapping = 30};
  c.block.softcap = 50;
  return c;
}

GemmaConfig third_12b() {
  return {.block = gemma_block(true, 3840, 15360, 16, 8),
          .num_hidden_layers = 48,
          .sliding_window = 1024,
          .rope = {.kind = RopeKind::kLinear, .theta = 1e6, .factor = 8}};
}

GemmaConfig third(int64_t hidden, int64_t mlp, int64_t layers) {
  return {.block = gemma_block(true, hidden, mlp, 4, 1),
          .num_hidden_layers = layers,
          .vocab_size = 262144,
          .max_position_embeddings = 32768,
          .sliding_window = 512};
}

}  // namespace

extern const FamilyInfo gemma_family = {
    .name = "gemma",
    .types = {{"gemma2", ModelUse::kTokens}, {"gemma3_text", ModelUse::kTokens}},
    .models = {gemma("gemma-3-270m", third(640, 2048, 18), 6),
               gemma("gemma-3-1b", third(1152, 6912, 26), 6), gemma("gemma-3-12b", third_12b(), 6),
               gemma("gemma-2-2b", second(2304, 9216, 26, 8), 2),
               gemma("gemma-2-9b", second(3584, 14336, 42, 16), 2)},
    .read = &GemmaModel::read,
};

}  // namespace compact
