// SPDX-License-Identifier: Apache-2.0
// Losses of pairs of answers to one prompt, of which one was preferred: DPO (Rafailov et al. 2023,
// arXiv:2305.18290) and its relatives, without logits [tokens, vocabulary].
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "compact/ops/functions/loss.h"

namespace compact {

// With m the difference between the two log ratios log p(answer) / p_reference(answer):
enum class PreferenceKind : uint8_t {
  kSigmoid,  // -(1 - smoothing) log sigmoid(beta m) - smoothing log sigmoid(-beta m)
  kHinge,    // max(0, 1 - beta m) (SLiC, arXiv:2305.10425)
  kIpo,      // (m - 1 / (2 beta))^2, log ratios being means over tokens (arXiv:2310.12036)
};

struct PreferenceLoss {
  PreferenceKind kind = PreferenceKind::kSigmoid;
  double beta = 0.1;     // above 0
  double smoothing = 0;  // sigmoid: how many preferences are taken to be wrong, below 1/2
};
// sigmoid, hinge or ipo. Throws InputError with a suggestion on another name.
PreferenceKind preference_kind(const std::string& name);

// Figures of a batch's pairs.
struct PreferenceScore {
  at::Tensor log_probs;  // f64 [pairs, 2]: sums over the tokens that have a target
  at::Tensor rewards;    // f64 [pairs, 2]: beta times the log ratios, of sums
};

// scale * sum over pairs of the loss. hidden, head, targets, treatment, report and softcap as for
// linear_cross_entropy(), targets [batch, length].
//   ranges int64 [2 pairs, 3] on the CPU, as check_ranges() has them: chosen and rejected answer of
//   each pair in turn, prompts included. reference: f64 [pairs, 2] of hidden's device, their log
//   probabilities under the reference model.
at::Tensor preference_loss(const at::Tensor& hidden, const at::Tensor& head,
                           const at::Tensor& targets, const at::Tensor& ranges,
                           const at::Tensor& reference, const PreferenceLoss& how, double scale,
                           const LossTreatment& treatment, LossReport* report = nullptr,
                           double softcap = 0, PreferenceScore* score = nullptr);

}  // namespace compact
