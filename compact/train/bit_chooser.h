// SPDX-License-Identifier: Apache-2.0
// Bits of the slots that a policy leaves open (`quantize:...,adapt=N`), chosen while a run trains.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "compact/config/config.h"
#include "compact/networks/network.h"
#include "compact/ops/policy/policy.h"
#include "compact/plan/step_memory.h"

namespace compact {

class BitChooser {
 public:
  BitChooser(const TrainConfig& config, const Policy& policy);

  // Whether bits are to be chosen before the update after `step`: 0, the interval and its
  // multiples, and before the interval 8 and its doubles.
  bool due(int64_t step) const;
  // Measures how much each tensor's rounding moves the gradient, and gives the network the bits of
  // least error in the bytes of N bits each. It measures on a part of the batch, so that probes in
  // 8 bits take no more than the step; on the whole batch where the network is not divisible().
  // Parameters have no gradient before and after; statistics of norms stay as they are. Where the
  // predicted variance of rounding is more than bits_guard times the gradient's own, the bits are
  // raised until it is not; under a budget the line says so instead. The gradient's own variance is
  // that between the two halves of the batch; where this has none, between two draws of dropout;
  // without dropout, between the halves of its targets. Bits that `fits` refuses are not taken: the
  // same bytes may lie elsewhere at the peak. Where memory runs out before they are known, bits
  // stay as they were. Returns a line for the console.
  // `latest`: the report of an earlier pass, empty where there was none.
  std::string choose(Network& network, const StepInputs& batch, const PassReport& latest,
                     const std::function<bool(const std::string& bits)>& fits);

  // The bits in force, a policy; empty: those of the policy. restore() sets them in the network.
  const std::string& bits() const { return bits_; }
  void restore(Network& network, const std::string& bits);

 private:
  struct Choice {
    std::string line, bits;
  };
  // Measures and chooses. Leaves probes' bits in the network, and those in force in bits_.
  Choice measure(Network& network, const StepInputs& batch, const PassReport& latest);

  int64_t interval_, probes_;
  double guard_;
  bool bounded_;                   // by a budget: bits may not be raised
  std::optional<int64_t> fewest_;  // bits of the lines that leave them open; none: none does
  std::string bits_;
};

}  // namespace compact
