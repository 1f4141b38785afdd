// SPDX-License-Identifier: Apache-2.0
#include "compact/base/check.h"
#include "compact/models/family_model.h"
#include "compact/models/gpt2/gpt2.h"

namespace compact {
namespace {

class Gpt2Model final : public FamilyModel<Gpt2Model, Gpt2Config, Gpt2> {
 public:
  using FamilyModel::FamilyModel;

  ModelShape shape() const override {
    return {.tokens = c_.tokens(),
            .length = c_.n_positions,
            .length_key = "n_positions",
            .attention = {.head_dim = c_.n_embd / c_.n_head, .dropout = c_.attn_pdrop}};
  }
  void fit(const ModelShape& shape) override {
    set_tokens(shape.tokens);
    c_.n_positions = shape.length;
    if (shape.dropout >= 0) c_.embd_pdrop = c_.resid_pdrop = c_.attn_pdrop = shape.dropout;
  }
  void shrink() override {
    c_.n_layer = 1;
    set_tokens({.vocabulary = 64});
  }
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
    .read = &Gpt2Model::read,
};

}  // namespace compact
