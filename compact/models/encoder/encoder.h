// SPDX-License-Identifier: Apache-2.0
// BERT (Devlin et al. 2018) and RoBERTa (Liu et al. 2019) with a head for sequences. A block begins
// with the norm that ends the block before, so that every block is one segment of which no more
// than two sums, qkv, the attention's output and what GELU reads need be kept.
//
// Parameters: embedding, positions, types, layers.N.attn.{norm,qkv,out},
// layers.N.mlp.{norm,up,down}, final.norm, pooler, head; biases beside them as NAME.bias. Slots:
// layers.N.attn.{input,norm,qkv, out}, layers.N.mlp.{input,norm,up,gelu}, final.input; what the
// head saves by its own names.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "compact/models/classifier.h"
#include "compact/models/encoder/config.h"
#include "compact/networks/ungated_block.h"

namespace compact {

class Encoder final : public Classifier {
 public:
  // Weights normal(0, initializer_range) as in Hugging Face, norms 1, biases 0. Throws InputError
  // where the policy names slots or parameters that the model lacks, or treatments that cannot
  // be.
  Encoder(const EncoderConfig& config, const Policy& policy, const NetworkOptions& options);
  Encoder(const Encoder&) = delete;

  // [batch, labels] of inputs {ids int64 [batch, sequence], token types the same, lengths int64
  // [batch]}: tokens from a sample's length on are padding.
  at::Tensor logits(const Tensors& inputs, const Pass& pass,
                    SegmentReport* report = nullptr) const override;

  const EncoderConfig& config() const { return config_; }
  // Hugging Face names; fused products as views of their parts.
  std::vector<std::pair<std::string, at::Tensor>> named_tensors() const override;
  Names other_names(const std::string& name) const override;
  bool may_be_new(const std::string& name) const override;

 private:
  const Parameter* table(const std::string& name, int64_t rows);
  void add_block(const UngatedBlock& layer, int64_t index);
  // The sums that block 0 reads.
  at::Tensor embedded(const Tensors& inputs) const;
  at::Tensor head_of(const at::Tensor& first, const Pass& pass) const;
  std::string prefix() const;

  EncoderConfig config_;
  const Parameter *embedding_ = nullptr, *positions_ = nullptr, *types_ = nullptr;
  std::vector<UngatedBlock> layers_;  // attn_norm: that ends the block before
  Affine final_norm_, pooler_, head_;
};

}  // namespace compact
