// SPDX-License-Identifier: Apache-2.0
// What an optimizer is set to.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "compact/codecs/parameter.h"

namespace compact {

// kAdamW: Loshchilov and Hutter 2019, for every parameter. kMuon: for hidden matrices, full or
// projected, momentum orthogonalised by Newton-Schulz steps (Jordan et al. 2024), the update scaled
// by 0.2 sqrt(max(rows, columns)) so that AdamW's learning rates serve (Liu et al. 2025); AdamW for
// the rest. kSgd: with momentum, as torch.optim.SGD. kAdam: AdamW, but with the weight decay
// added to the gradient (Kingma and Ba 2015), as graph networks are trained.
enum class OptimizerKind : uint8_t { kAdamW, kMuon, kSgd, kAdam };

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-6;
  // Decoupled: W <- (1 - learning rate * weight_decay) W; of SGD and Adam a part of the gradient.
  double weight_decay = 0;
  double momentum = 0.95;       // Muon: m <- momentum * m + gradient
  bool nesterov = true;         // Muon: orthogonalises gradient + momentum * m, else m
  double sgd_momentum = 0.9;    // m <- momentum * m + gradient; 0: there is no m
  bool master_weights = false;  // bf16 weights: keep and update an f32 copy
  bool carry_second = false;    // a re-draw carries v by squared overlaps; else v is kept
  // For steps of several backward passes: from begin_backward() to step(), as soon as autograd has
  // made the gradient of a bf16 parameter, it is moved into an f32 sum, so that small parts are not
  // rounded away.
  bool f32_sums = false;
  // Multiplies the learning rate of hidden and of projected matrices.
  double hidden_lr_factor = 1;
  uint64_t seed = 0;  // of stochastic rounding
  // How a parameter's moments are held, `f32`, `bf16` or `f8`; empty: f32 everywhere.
  std::function<std::string(const Parameter&)> moment;
};

struct OptimizerInfo {
  std::string name, summary;
  OptimizerKind kind;
};
// Every optimizer there is.
std::span<const OptimizerInfo> optimizers();
// `adamw` or `muon`; throws InputError with a suggestion on another name.
OptimizerKind optimizer_kind(const std::string& name);
// Throws InputError on a value out of range.
void check_options(const OptimizerOptions& options);

}  // namespace compact
