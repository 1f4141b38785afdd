// SPDX-License-Identifier: Apache-2.0
// How many kernels the host launches in a planned step on CUDA, and how often it waits: what a
// small step takes its time from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compact/plan/operations.h"

namespace compact {

struct StepLaunches {
  // By part, in the order of a step: "forward", "loss" (of both passes), "backward",
  // "gradient norm", "adamw" and "fold" (kernels of ours, wherever they are launched), "optimizer"
  // (the rest of updates). Parts without launches are left out, as are copies of the batch.
  std::vector<std::pair<std::string, int64_t>> parts;
  // How often the host waits in a step: a run reads loss and norm of a step once, when the next one
  // is launched. Nothing else can wait, since no operation reads values on the meta device.
  static constexpr int64_t kWaits = 1;
  int64_t total() const;
};

StepLaunches launches_of(std::span<const Operation> operations);
// "launches 1,042: forward 310, loss 49, ...; the host waits for a step once, one step late".
std::string str(const StepLaunches& launches);

}  // namespace compact
