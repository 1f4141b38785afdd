// SPDX-License-Identifier: Apache-2.0
// The moments of a training step, by which its memory is reported.
#pragma once

#include <cstdint>
#include <string>

namespace compact {

enum class Phase : uint8_t {
  kStart,  // before the first of the others
  kBatch,
  kForward,
  kForwardOf,  // of a part of the network
  kLoss,
  kBackward,
  kBackwardOf,      // of a part
  kBackwardBefore,  // between a part and the one before it
  kGradientNorm,
  kOptimizer,
};

struct StepMoment {
  Phase phase = Phase::kStart;
  std::string part;  // "layers.3", of the phases of a part
  bool operator==(const StepMoment&) const = default;
};

// "backward of layers.3".
std::string str(const StepMoment& moment);

}  // namespace compact
