// SPDX-License-Identifier: Apache-2.0
// Decoders of LLaMA's kind (Touvron et al. 2023): RMSNorm, rotary positions, grouped-query
// attention, SwiGLU; with biases, norms of heads and multipliers as the configuration says. Every
// block is one segment; products of one input are fused (q, k, v; gate, up).
//
// Parameters: embedding, layers.N.attn.{norm,qkv,out}, layers.N.mlp.{norm,gate_up,down},
// final.norm, head (absent where tied); where the model has them layers.N.attn.{q_norm,k_norm} and
// the matrix's name with .bias. Slots: layers.N.attn.{input,norm,qkv,out},
// layers.N.mlp.{input,norm,gate_up,silu,product}, final.{input,norm}, loss.logits; with norms of
// heads layers.N.attn.heads, which attention reads then.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compact/base/llama_config.h"
#include "compact/models/network.h"
#include "compact/ops/functions/loss.h"
#include "compact/ops/policy/policy.h"
#include "compact/ops/stages/stages.h"

namespace compact {

struct ModelOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  int64_t max_length = 2048;  // longest sequence
  uint64_t seed = 0;          // of weights and projections
};

class Llama final : public Network {
 public:
  // Weights normal(0, initializer_range) as in Hugging Face, norms 1, biases 0. Throws InputError
  // where the policy names slots or parameters that the model has not, or treatments that cannot
  // be, and where max_length is above the model's sliding window.
  Llama(const LlamaConfig& config, const Policy& policy, const ModelOptions& options);
  Llama(const Llama&) = delete;

  // scale * sum of next-token losses; inputs {ids}, ids and targets int64 [batch, sequence],
  // targets ignored where -100.
  at::Tensor loss(const Tensors& inputs, const at::Tensor& targets, const Pass& pass,
                  PassReport* report = nullptr) const override;
  Score score(const Tensors& inputs, const at::Tensor& targets) const override;
  const Parameter* chunked_head() const override { return &head(); }
  // [batch, sequence, vocabulary], in the model's type; without a graph.
  at::Tensor logits(const at::Tensor& ids) const;

  const LlamaConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  at::Device device() const override { return options_.device; }
  at::ScalarType dtype() const override { return options_.dtype; }
  // Hugging Face names; fused products as views of their parts.
  std::vector<std::pair<std::string, at::Tensor>> named_tensors() const override;

  struct Layer {
    const Parameter *attn_norm, *qkv, *out, *mlp_norm, *gate_up, *down;
    // Null where the model has none.
    const Parameter *q_norm, *k_norm, *qkv_bias, *out_bias, *gate_up_bias, *down_bias;
  };
  const std::vector<Layer>& layers() const { return layers_; }
  const Parameter& embedding() const { return *embedding_; }
  const Parameter& head() const { return head_ ? *head_ : *embedding_; }  // tied: the embedding
  const Parameter& final_norm() const { return *final_norm_; }
  const RopeTables& rope() const { return *rope_; }
  // What the first block reads, of ids [batch, sequence].
  at::Tensor embedded(const at::Tensor& ids, const at::Tensor& embedding) const;

 private:
  const Parameter* make(const std::string& name, std::vector<int64_t> shape, bool hidden,
                        std::vector<int64_t> parts, const Policy& policy, double of_vectors = 1);
  void add_block(const Layer& layer, int64_t index, const Policy& policy);
  at::Tensor hidden(const at::Tensor& ids, const at::Tensor& embedding, const SegmentPass& pass,
                    SegmentReport* report) const;

  LlamaConfig config_;
  ModelOptions options_;
  std::shared_ptr<const RopeTables> rope_;
  const Parameter *embedding_ = nullptr, *final_norm_ = nullptr;
  const Parameter* head_ = nullptr;  // null: tied
  std::vector<Layer> layers_;
  LossTreatment loss_treatment_;
};

}  // namespace compact
