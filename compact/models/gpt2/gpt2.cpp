// SPDX-License-Identifier: Apache-2.0
#include "compact/models/gpt2/gpt2.h"

#include <ATen/ATen.h>

#include <cmath>

#include "compact/base/check.h"
#include "compact/models/config_rows.h"
#include "compact/ops/functions/range_attention.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

std::string layer_of(int64_t i, const char* rest) { return cat("layers.", i, ".", rest); }

const Gpt2Config& checked_for(const NetworkOptions& options, const Gpt2Config& config) {
  COMPACT_CHECK(options.max_length <= checked(config).n_positions, "[gpt2] sequences of ",
                options.max_length, " tokens are longer than n_positions ", config.n_positions);
  return config;
}

}  // namespace

Gpt2::Gpt2(const Gpt2Config& config, const Policy& policy, const NetworkOptions& options)
    : LanguageModel(policy, options, checked_for(options, config).tokens(), config.n_embd,
                    config.initializer_range),
      config_(config) {
  const int64_t n = config_.n_embd, m = config_.n_inner;
  positions_ = parameter("positions",
                         normal("positions", {config_.n_positions, n}, config_.initializer_range));
  const double residual = 1 / std::sqrt(2.0 * static_cast<double>(config_.n_layer));
  for (int64_t i = 0; i < config_.n_layer; ++i) {
    layers_.push_back({.attn_norm = layer_norm(layer_of(i, "attn.norm"), n),
                       .qkv = in_block(layer_of(i, "attn.qkv"), n, {n, n, n}, true),
                       .out = in_block(layer_of(i, "attn.out"), n, {n}, true, residual),
                       .mlp_norm = layer_norm(layer_of(i, "mlp.norm"), n),
                       .up = in_block(layer_of(i, "mlp.up"), n, {m}, true),
                       .down = in_block(layer_of(i, "mlp.down"), m, {n}, true, residual)});
  }
  final_norm_ = layer_norm("final.norm", n);
  finish_parameters(config_.tie_word_embeddings);

  for (int64_t i = 0; i < config_.n_layer; ++i) add_block(layers_[i], i);
  Part& last = add_part("final", slot_of(policy, "final.input", Role::kInput, n));
  last.add(layer_norm_stage(config_.layer_norm_epsilon), {final_norm_.weight, final_norm_.bias});
  last.segment.finish();
  finish_parts();
}

void Gpt2::add_block(const UngatedBlock& block, int64_t i) {
  const int64_t heads = config_.n_head, d = config_.n_embd / heads;
  double scale = config_.scale_attn_weights ? 1 / std::sqrt(static_cast<double>(d)) : 1;
  if (config_.scale_attn_by_inverse_layer_idx) scale /= static_cast<double>(i + 1);
  const BlockShape shape = {.hidden = config_.n_embd,
                            .intermediate = config_.n_inner,
                            .heads = heads,
                            .head_dim = d,
                            .eps = config_.layer_norm_epsilon,
                            .scale = scale,
                            .attention_dropout = config_.attn_pdrop,
                            .dropout = config_.resid_pdrop,
                            .gelu_tanh = config_.gelu_tanh};
  const std::string name = cat("layers.", i);
  Part& part =
      add_part(name, slot_of(policy(), name + ".attn.input", Role::kInput, config_.n_embd));
  add_ungated_block(part, 0, name, policy(), block, shape, attention_of(shape, device(), dtype()));
  part.segment.finish();
}

at::Tensor Gpt2::embedded(const at::Tensor& ids, const at::Tensor& embedding, const Pass& pass,
                          int64_t position) const {
  const at::Tensor& table = positions_->weight;
  const at::Tensor places = pass.ranges.defined()
                                ? at::embedding(table, places_in_ranges(pass.ranges, ids))
                                : table.narrow(0, position, ids.size(1));
  const at::Tensor x = at::embedding(embedding, ids).add_(places);
  return DropoutKeys(pass).drop(x, pass.training ? config_.embd_pdrop : 0);
}

std::vector<std::pair<std::string, at::Tensor>> Gpt2::named_tensors() const {
  NamedTensors all;
  const std::string base = "transformer.";
  const auto put_matrix = [&](const std::string& name, const Affine& a) {
    all.emplace_back(name + ".weight", a.weight->weight.detach().t());
    all.emplace_back(name + ".bias", a.bias->weight.detach());
  };
  put(all, base + "wte", {&embedding()});
  put(all, base + "wpe", {positions_});
  for (size_t i = 0; i < layers_.size(); ++i) {
    const UngatedBlock& l = layers_[i];
    const std::string name = cat(base, "h.", i, ".");
    put(all, name + "ln_1", l.attn_norm);
    put_matrix(name + "attn.c_attn", l.qkv);
    put_matrix(name + "attn.c_proj", l.out);
    put(all, name + "ln_2", l.mlp_norm);
    put_matrix(name + "mlp.c_fc", l.up);
    put_matrix(name + "mlp.c_proj", l.down);
  }
  put(all, base + "ln_f", final_norm_);
  if (!config_.tie_word_embeddings) put(all, "lm_head", {&head()});
  return all;
}

}  // namespace compact
