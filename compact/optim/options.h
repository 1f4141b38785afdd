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
// the rest.
enum class OptimizerKind : uint8_t { kAdamW, kMuon };

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-6;
  double weight_decay = 0;      // decoupled: W <- (1 - learning rate * weight_decay) W
  double momentum = 0.95;       // Muon: m <- momentum * m + gradient
  bool nesterov = true;         // Muon: orthogonalises gradient + momentum * m, else m
  bool master_weights = false;  // bf16 weights: keep and update an f32 copy
  bool carry_second = false;    // a re-draw carries v by squared overlaps; else v is kept
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
