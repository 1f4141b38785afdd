// SPDX-License-Identifier: Apache-2.0
// Linear layer and cross-entropy as one autograd node, so that the logits [tokens, vocabulary] need
// never exist at once.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <cstdint>

#include "compact/base/function_ref.h"
#include "compact/ops/policy/treatment.h"

namespace compact {

// How the logits are treated.
struct LossTreatment {
  // 0: kept as plain PyTorch keeps them (logits, and f32 log-probabilities), gradients computed in
  // the backward pass. Else: gradients of hidden states and head computed in the forward pass, this
  // many tokens at a time.
  int64_t chunk_tokens = 0;

  // From the treatment of slot `loss.logits`: keep, or chunk:tokens=N. Without N, chunks of about
  // 2^24 logits, on CUDA of 2^27.
  static LossTreatment from(const Treatment& slot, int64_t vocabulary, c10::DeviceType device);
};

// The memory stored by a forward pass, in bytes.
struct LossReport {
  int64_t hidden = 0;  // hidden states as they are
  int64_t logits = 0;  // logits and log-probabilities, or the gradients made of them
  int64_t bytes() const { return hidden + logits; }
};

// scale * sum of the cross-entropy of hidden W^T over the tokens whose target is not -100.
// With a softcap logits l are softcap tanh(l / softcap) (Gemma 2).
//   hidden [.., n], head [vocabulary, n], targets int64 [..] of as many tokens; returns f32 []. For
//   the mean over valid tokens, scale is one over their number (over all micro-batches of a step).
// Gradients of tokens without a target are 0, whatever scale and the loss's own gradient are.
// Hidden states and head have one type; autocast does not reach inside. Log-softmax is f32 inside;
// with several chunks the head's gradient is summed in f32. The graph keeps what the gradients that
// are required read, and needs neither parameter nor model to live. A second backward pass, also
// after one that failed, needs retain_graph in the first. Throws InputError on other types and
// shapes, and on tensors that check_plain() refuses.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& head,
                                const at::Tensor& targets, double scale,
                                const LossTreatment& treatment, LossReport* report = nullptr,
                                double softcap = 0);

// A loss that is another function of the tokens' losses than their sum.
struct CombinedLoss {
  at::Tensor total;    // f64 []
  at::Tensor weights;  // f32 [tokens], its derivatives by the tokens' losses
};
// Makes it of the tokens' losses f32 [tokens], 0 where there is no target.
using CombineLosses = FunctionRef<CombinedLoss(const at::Tensor& losses)>;

// scale * the combined loss, otherwise as linear_cross_entropy(). With several chunks logits are
// made twice in the forward pass: gradients wait for all tokens' losses.
at::Tensor linear_combined_loss(const at::Tensor& hidden, const at::Tensor& head,
                                const at::Tensor& targets, double scale,
                                const LossTreatment& treatment, CombineLosses combine,
                                LossReport* report = nullptr, double softcap = 0);

// In place softcap tanh(logits / softcap); 0: as they are.
void cap_logits(const at::Tensor& logits, double softcap);

}  // namespace compact
