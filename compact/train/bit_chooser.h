// SPDX-License-Identifier: Apache-2.0
// Bits of the slots that a policy leaves open (`quantize:...,adapt=N`), chosen while a run trains.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "compact/models/llama.h"
#include "compact/train/config.h"

namespace compact {

class BitChooser {
 public:
  BitChooser(const TrainConfig& config, const Llama& model);

  // Whether bits are to be chosen before the update after `step`.
  bool due(int64_t step) const;
  // Measures, on a part of the batch, how much each slot's rounding moves the gradient, and gives
  // the model the bits of least error in the bytes of N bits each. Parameters have no gradient
  // before and after. Returns a line for the console.
  std::string choose(Llama& model, const at::Tensor& ids, const at::Tensor& targets,
                     uint64_t noise);

  // The bits in force, a policy; empty: those of the policy. Giving them back sets the model.
  const std::string& bits() const { return bits_; }
  void restore(Llama& model, const std::string& bits);

 private:
  int64_t interval_, probes_;
  std::optional<int64_t> fewest_;  // bits of the slots that are open; none: none is
  std::string bits_;
};

}  // namespace compact
