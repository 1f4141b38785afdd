// SPDX-License-Identifier: Apache-2.0
// The common part of decoders of LLaMA's and of Gemma's kind: every block (gated_block.h) is one
// segment, and products of one input are fused (q, k, v; gate, up).
//
// Parameters: embedding, layers.N.attn.{qkv,out}, layers.N.mlp.{gate_up,down}, final.norm, head
// (absent where tied); where the shape has them layers.N.{attn,mlp}.{norm,post_norm},
// layers.N.attn.{q_norm,k_norm} and a matrix's name with .bias. Slots: those of blocks layers.N,
// final.{input,norm}, loss.logits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compact/models/language_model.h"
#include "compact/networks/gated_block.h"
#include "compact/ops/stages/stages.h"

namespace compact {

struct GatedDecoderOptions {
  int64_t layers = 0;
  double initializer_range = 0.02;
  bool tied = false;     // the head to the embedding
  double embedding = 1;  // multiplies what the first block reads
};

class GatedDecoder : public LanguageModel {
 public:
  bool is_far(int64_t length) const override;
  // Hugging Face names; fused products as views of their parts, unless a file has them fused;
  // without padding.
  std::vector<std::pair<std::string, at::Tensor>> named_tensors() const override;

 protected:
  // With the parameters of all layers, normal(0, initializer_range), norms that multiply by 1,
  // biases 0.
  GatedDecoder(const Policy& policy, const NetworkOptions& options, const TokenIds& tokens,
               const BlockShape& shape, const GatedDecoderOptions& decoder);

  // For sequences as long as the options say, of a model with so many max_position_embeddings.
  std::shared_ptr<const RopeTables> tables(const RopeConfig& rope, int64_t max_positions) const;
  // The next block, whose queries and keys are turned by `rope` (null: they are not), and whose
  // tokens attend to a window (0: to all). A window that no sequence is longer than is none.
  void add_block(std::shared_ptr<const RopeTables> rope, int64_t window);
  // To be called after the last block: adds the final norm, whose result is multiplied by `scale`.
  void finish_blocks(double scale = 1);

 private:
  // A matrix or vector of a block in files; prefix and parts as for put().
  struct InFiles {
    std::string prefix;
    Affine GatedBlock::*affine;
    std::vector<const char*> parts = {""};
    bool product = false;
  };
  std::vector<InFiles> in_files(size_t number) const;
  Affine norm(const std::string& name, int64_t width);
  at::Tensor embedded(const at::Tensor& ids, const at::Tensor& embedding, const Pass& pass,
                      int64_t position) const override;

  BlockShape shape_;
  double embedding_;
  std::vector<GatedBlock> layers_;
  int64_t blocks_ = 0;  // that are there
  std::vector<std::shared_ptr<const RopeTables>> rope_;
  Affine final_norm_;
};

}  // namespace compact
