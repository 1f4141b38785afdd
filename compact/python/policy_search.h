// SPDX-License-Identifier: Apache-2.0
// The search of compact/plan for a policy, over steps that another program runs. For a
// process that plans.
#pragma once

#include <ATen/core/Dict.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "compact/plan/search.h"
#include "compact/python/step_trace.h"

namespace compact {

// Implemented by the package, called by the search: gives the model a policy and the optimizer that
// it asks for, runs a step, and returns its trace, with operations or segments where asked, and the
// bytes that it reserves; -1: the preset is not for the model.
inline constexpr const char* kPlannedStep =
    "planned_step(str policy, bool operations, bool segments) -> "
    "(__torch__.torch.classes.compact.StepTrace, int)";

class PolicySearch final : public torch::CustomClassHolder {
 public:
  // `allow`: as --allow of the program. `moments`: how the optimizer holds all of them; empty: no
  // policy changes it. On a GPU, `half`: products are made in 16 bits, `tf32`: others in TF32.
  // `known`: what speeds() of earlier searches gave; what is there is not measured again.
  using Speeds = c10::Dict<std::string, std::vector<std::vector<double>>>;
  PolicySearch(const std::string& allow, const std::string& moments, bool half, bool tf32,
               const Speeds& known);

  // Its measurements of this machine, by a key that says of what: bytes a second of a copy,
  // operations a second of the head's product, and then seconds of the steps of each group of
  // segments. Empty: on a GPU, or where it was known.
  const Speeds& speeds() const { return speeds_; }

  // Lines of a policy or the name of a preset; predicted seconds of a step, and of these what it
  // adds; E|g' - g|^2 / |g|^2; whether it loses nothing. nullopt: no step takes so little.
  using Found = std::tuple<std::string, double, double, double, bool>;
  std::optional<Found> find(int64_t budget);
  int64_t least_peak() { return search_->least_peak(); }

 private:
  Speeds speeds_;
  std::unique_ptr<BudgetSearch> search_;
};

}  // namespace compact
