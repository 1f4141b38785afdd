// SPDX-License-Identifier: Apache-2.0
// A network that predicts the next token: the common part of decoders. A model adds its parameters,
// its parts (the last one is the norm before the head) and the input of the first part.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "compact/models/model_config.h"
#include "compact/networks/network.h"
#include "compact/ops/functions/loss.h"
#include "compact/ops/functions/token_cache.h"

namespace compact {

class LanguageModel : public Network {
 public:
  // scale * sum of next-token losses; inputs {ids}, ids and targets int64 [batch, sequence],
  // targets ignored where -100. With inputs {ids, reference} the sum of the losses of pairs by
  // preference_loss(), whose ranges are those of the pass.
  at::Tensor loss(const Tensors& inputs, const at::Tensor& targets, const Pass& pass,
                  PassReport* report = nullptr) const override;
  Score score(const Tensors& inputs, const at::Tensor& targets,
              const at::Tensor& ranges = {}) const override;
  const Parameter* chunked_head() const override { return &head(); }
  // [batch, sequence, vocabulary], in the model's type; without a graph.
  at::Tensor logits(const at::Tensor& ids) const;
  // Logits [vocabulary] of the last of ids int64 [1, tokens], which follow the tokens in the cache
  // and are added to it. Programs use decoder.h instead.
  at::Tensor logits_of_last(const at::Tensor& ids, TokenCache& cache) const;
  // Whether tokens of a sequence of this length are read otherwise than those of a shorter one.
  virtual bool is_far(int64_t length) const { return false; }

  // A folder of the model without its head (LlamaModel, published GPT-2) lacks the prefix.
  Names other_names(const std::string& name) const override;
  // Tied, a file may have the embedding as a head once more.
  Names copies_of(const std::string& name) const override;

  const TokenIds& tokens() const { return tokens_; }
  const Parameter& embedding() const { return *embedding_; }
  const Parameter& head() const { return head_ ? *head_ : *embedding_; }  // tied: the embedding

 protected:
  // The embedding's name in files.
  virtual const char* embedding_name() const { return "model.embed_tokens.weight"; }
  // With an embedding [vocabulary, hidden], normal(0, initializer_range) as all matrices.
  LanguageModel(const Policy& policy, const NetworkOptions& options, TokenIds tokens,
                int64_t hidden, double initializer_range);
  // The input of the first segment for ids [batch, sequence], the first of which is at `position`,
  // by the embedding's weight.
  virtual at::Tensor embedded(const at::Tensor& ids, const at::Tensor& embedding, const Pass& pass,
                              int64_t position) const = 0;
  // A matrix of a block, with values of initializer_range times `scale`.
  Affine in_block(const std::string& name, int64_t in, std::vector<int64_t> out, bool bias,
                  double scale = 1, const ZeroPadding& padding = {});
  // To be called once all other parameters are there: adds the head, unless it is tied to the
  // embedding. Throws InputError where the policy names others, or asks for what they cannot have.
  void finish_parameters(bool tied);
  // Logits l become softcap tanh(l / softcap).
  void cap_logits_at(double softcap) { softcap_ = softcap; }
  // To be called once all parts are there.
  void finish_parts();

 private:
  const Parameter* table(const char* name);
  at::Tensor hidden(const at::Tensor& ids, const at::Tensor& embedding, const Pass& pass,
                    TokenCache* cache, SegmentReport* report) const;
  at::Tensor loss_of(const Tensors& inputs, const at::Tensor& targets, const Pass& pass,
                     PassReport* report, PreferenceScore* score) const;

  TokenIds tokens_;
  int64_t width_;
  double deviation_;
  double softcap_ = 0;                                      // 0: logits are as they are
  const Parameter *embedding_ = nullptr, *head_ = nullptr;  // no head: tied
  LossTreatment loss_treatment_;
};

}  // namespace compact
