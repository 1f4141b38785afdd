// SPDX-License-Identifier: Apache-2.0
#include "compact/models/encoder/encoder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "compact/base/check.h"
#include "compact/models/config_rows.h"
#include "compact/ops/memory/memory_trace.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

std::string in_layer(int64_t i, const char* rest) { return cat("layers.", i, ".", rest); }

// Tokens are counted from pad + 1 on; one that is padding, also within a text, is not counted and
// lies at pad.
at::Tensor roberta_positions(const at::Tensor& ids, int64_t pad) {
  const at::Tensor counted = ids.ne(pad);
  return counted.cumsum(1).mul_(counted).add_(pad);
}

}  // namespace

Encoder::Encoder(const EncoderConfig& config, const Policy& policy, const NetworkOptions& options)
    : Classifier(policy, options), config_(config) {
  checked(config_);
  const int64_t n = config_.hidden_size, m = config_.intermediate_size;
  const LinearStart block{.deviation = config_.initializer_range};
  const LinearStart outside{.deviation = config_.initializer_range, .hidden = false};
  embedding_ = table("embedding", config_.vocab_size);
  positions_ = table("positions", config_.max_position_embeddings);
  types_ = table("types", config_.type_vocab_size);
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    layers_.push_back({.attn_norm = layer_norm(in_layer(i, "attn.norm"), n),
                       .qkv = linear(in_layer(i, "attn.qkv"), n, {n, n, n}, block),
                       .out = linear(in_layer(i, "attn.out"), n, {n}, block),
                       .mlp_norm = layer_norm(in_layer(i, "mlp.norm"), n),
                       .up = linear(in_layer(i, "mlp.up"), n, {m}, block),
                       .down = linear(in_layer(i, "mlp.down"), m, {n}, block)});
  }
  final_norm_ = layer_norm("final.norm", n);
  pooler_ = linear("pooler", n, {n}, outside);
  head_ = linear("head", n, {config_.outputs()}, outside);
  finish();
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) add_block(layers_[i], i);
  Part& last = add_part("final", slot_of(policy, "final.input", Role::kInput, n));
  last.add(layer_norm_stage(config_.layer_norm_eps), {final_norm_.weight, final_norm_.bias});
  last.segment.finish();
  place_weights();
}

const Parameter* Encoder::table(const std::string& name, int64_t rows) {
  return parameter(name, normal(name, {rows, config_.hidden_size}, config_.initializer_range));
}

void Encoder::add_block(const UngatedBlock& l, int64_t i) {
  const int64_t n = config_.hidden_size, heads = config_.num_attention_heads;
  const std::string name = cat("layers.", i);
  const auto slot = [&](const char* rest, Role role) {
    return slot_of(policy(), in_layer(i, rest), role, n);
  };
  Part& part = add_part(name, slot("attn.input", Role::kInput));
  const bool drops = i == 0 && config_.hidden_dropout > 0;
  const Slot normed = slot("attn.norm", Role::kNorm);
  int first = part.add(layer_norm_stage(config_.layer_norm_eps),
                       {l.attn_norm.weight, l.attn_norm.bias}, drops ? Slot{} : normed);
  if (drops) first = part.add(dropout_stage(config_.hidden_dropout), {}, normed);
  const BlockShape shape = {.hidden = n,
                            .intermediate = config_.intermediate_size,
                            .heads = heads,
                            .head_dim = n / heads,
                            .eps = config_.layer_norm_eps,
                            .attention_dropout = config_.attention_dropout,
                            .causal = false,
                            .dropout = config_.hidden_dropout,
                            .pre_norms = false,
                            .gelu_tanh = config_.gelu_tanh};
  add_ungated_block(part, first, name, policy(), l, shape, attention_of(shape, device(), dtype()));
  part.segment.finish();
}

at::Tensor Encoder::embedded(const Tensors& inputs) const {
  COMPACT_CHECK(inputs.size() == 3, "[encoder] needs ids, token types and lengths");
  const at::Tensor &ids = inputs[0], &types = inputs[1];
  COMPACT_CHECK(ids.dim() == 2 && ids.scalar_type() == at::kLong && types.sizes() == ids.sizes(),
                "[encoder] ids and token types must be int64 [batch, sequence]");
  COMPACT_CHECK(ids.size(1) <= config_.max_length(), "[encoder] a sequence of ", ids.size(1),
                " tokens is longer than the model's ", config_.max_length());
  trace_moment(Phase::kForwardOf, "embedding");
  const int64_t pad = config_.pad_token_id;
  // As in Hugging Face a padding token is trained neither as a word nor, in RoBERTa, as a place.
  at::Tensor x = at::embedding(embedding_->weight, ids, pad);
  if (config_.kind == EncoderKind::kRoberta) {
    x.add_(at::embedding(positions_->weight, roberta_positions(ids, pad), pad));
  } else {
    x.add_(positions_->weight.narrow(0, 0, ids.size(1)));
  }
  return x.add_(at::embedding(types_->weight, types));
}

at::Tensor Encoder::head_of(const at::Tensor& first, const Pass& pass) const {
  DropoutKeys keys(pass);
  const double given = config_.classifier_dropout, p = !pass.training ? 0
                                                       : given < 0    ? config_.hidden_dropout
                                                                      : given;
  // Only RoBERTa has the first dropout.
  at::Tensor x = config_.kind == EncoderKind::kRoberta ? keys.drop(first, p) : first;
  x = keys.drop(at::tanh(at::linear(x, pooler_.weight->weight, pooler_.bias->weight)), p);
  return at::linear(x, head_.weight->weight, head_.bias->weight);
}

at::Tensor Encoder::logits(const Tensors& inputs, const Pass& pass, SegmentReport* report) const {
  at::Tensor x = embedded(inputs);
  const SegmentPass within = pass.of_segments(inputs[2]);
  const auto& blocks = parts();
  for (size_t i = 0; i + 1 < blocks.size(); ++i) x = blocks[i]->run(std::move(x), within, report);
  return head_of(blocks.back()->run(x.select(1, 0), within, report), pass);
}

std::string Encoder::prefix() const {
  return config_.kind == EncoderKind::kBert ? "bert." : "roberta.";
}

std::vector<std::pair<std::string, at::Tensor>> Encoder::named_tensors() const {
  NamedTensors all;
  const std::string base = prefix(), embeddings = base + "embeddings.";
  put(all, embeddings + "word_embeddings", {embedding_});
  put(all, embeddings + "position_embeddings", {positions_});
  put(all, embeddings + "token_type_embeddings", {types_});
  put(all, embeddings + "LayerNorm", layers_[0].attn_norm);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const UngatedBlock& l = layers_[i];
    const std::string name = cat(base, "encoder.layer.", i, ".");
    put(all, name + "attention.self.", l.qkv, {"query", "key", "value"});
    put(all, name + "attention.output.dense", l.out);
    put(all, name + "attention.output.LayerNorm", l.mlp_norm);
    put(all, name + "intermediate.dense", l.up);
    put(all, name + "output.dense", l.down);
    put(all, name + "output.LayerNorm",
        i + 1 < layers_.size() ? layers_[i + 1].attn_norm : final_norm_);
  }
  const bool bert = config_.kind == EncoderKind::kBert;
  put(all, bert ? base + "pooler.dense" : "classifier.dense", pooler_);
  put(all, bert ? "classifier" : "classifier.out_proj", head_);
  return all;
}

// A file without a head lacks the prefix; older files name the tensors of norms gamma and beta.
Network::Names Encoder::other_names(const std::string& name) const {
  Names names;
  const std::string base = prefix();
  if (name.starts_with(base)) names.push_back(name.substr(base.size()));
  const size_t at = name.find("LayerNorm.");
  if (at == name.npos) return names;
  names.insert(names.begin(), name);
  const size_t count = names.size();
  for (size_t i = 0; i < count; ++i) {
    const bool weight = names[i].ends_with("weight");
    names.push_back(names[i].substr(0, names[i].rfind('.')) + (weight ? ".gamma" : ".beta"));
  }
  return names;
}

bool Encoder::may_be_new(const std::string& name) const {
  return name.starts_with("classifier") || name.starts_with(prefix() + "pooler.");
}

}  // namespace compact
