// SPDX-License-Identifier: Apache-2.0
// The table of optimizers, and what a row says.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compact/base/named.h"

namespace at {
class Tensor;
}

namespace compact {

struct FoldPart;
struct OptimizerOptions;
struct Parameter;
struct ParameterState;
struct ParameterStep;
struct StepContext;

struct OptimizerInfo {
  // The moments kept of a parameter between updates, each of its leaf's shape.
  struct State {
    bool m = false;  // signed
    bool v = false;  // never negative
  };

  std::string name, summary;
  // One update from `grad`, f32 or bf16 of the leaf's shape: of the weight, or of the carrier
  // followed by the fold. What it reads and writes is in update.h.
  void (*step)(ParameterState& s, const at::Tensor& grad, const StepContext& context);
  State (*state)(const OptimizerOptions&);
  // The calls of fold() that a step makes on a projected parameter, in their order.
  std::vector<FoldPart> (*folds)(const ParameterState& s, const StepContext& context);
  // The same for several parameters in few launches of a GPU. Null, or where `steps_together` is
  // false: parameters are updated one after the other.
  void (*step_all)(std::span<const ParameterStep> steps) = nullptr;
  bool (*steps_together)(const ParameterState& s) = nullptr;
  // Whether it updates a parameter; AdamW updates the others. Null: it updates all.
  bool (*takes)(const Parameter&) = nullptr;
  // True: the step itself decays weights, W <- (1 - learning rate * weight decay) W. False: the
  // decay is part of the gradient that the step is given. Projected weights always decay the first
  // way.
  bool decoupled_decay = true;
};

extern const OptimizerInfo adamw_optimizer;
extern const OptimizerInfo muon_optimizer;
extern const OptimizerInfo adam_optimizer;
extern const OptimizerInfo sgd_optimizer;

// Every optimizer there is, in the order of lists.
inline std::span<const OptimizerInfo* const> optimizers() {
  static constexpr const OptimizerInfo* kAll[] = {&adamw_optimizer, &muon_optimizer,
                                                  &adam_optimizer, &sgd_optimizer};
  return kAll;
}

// Throws InputError with a suggestion on an unknown name.
inline const OptimizerInfo& optimizer_named(std::string_view name) {
  return named(optimizers(), name, "[optimizer] unknown kind");
}

}  // namespace compact
