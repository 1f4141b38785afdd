// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/memory/step_moment.h"

namespace compact {

std::string str(const StepMoment& moment) {
  static constexpr const char* kTexts[] = {
      "start",    "batch",        "forward",          "forward of ",   "loss",
      "backward", "backward of ", "backward before ", "gradient norm", "optimizer"};
  return kTexts[static_cast<size_t>(moment.phase)] + moment.part;
}

}  // namespace compact
