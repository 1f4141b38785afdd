// SPDX-License-Identifier: Apache-2.0
// The predicted time of a step on a GPU: the sum over its operations, each of which takes as long
// as its products or as its bytes, whichever is longer. Launches and waits are not in it.
#pragma once

#include <span>
#include <string>

#include "compact/plan/operations.h"

namespace compact {

// Rates that a GPU reaches, a second.
struct GpuRates {
  std::string source;  // what the figures come from
  double half = 0;     // operations of products of bf16
  double single = 0;   // of f32, on the path that is in force
  double bytes = 0;    // of its memory
  double host = 0;     // bytes from or to the host
};

struct TimePart {
  const char* name;
  const char* what;
  double products = 0, bytes = 0, seconds = 0;
};
struct StepTime {
  // Every operation is in one of them; what is rebuilt counts again.
  TimePart parts[5] = {
      {"products", "of layers: matrices, convolutions, attention"},
      {"other layers", "what else runs forward and backward"},
      {"codecs", "packed, restored, projected; from and to the host"},
      {"loss", "with the products of its head"},
      {"optimizer", "with the norm of the gradients"},
  };
  TimePart total() const;
};

// In either pass.
bool is_of_loss(const Operation& operation);
StepTime step_time(std::span<const Operation> operations, const GpuRates& rates);

}  // namespace compact
