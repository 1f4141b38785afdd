// SPDX-License-Identifier: Apache-2.0
// What a run says of itself before its first step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compact/config/config.h"
#include "compact/networks/network.h"
#include "compact/tasks/task.h"

namespace compact {

struct Described {
  const TrainConfig& config;
  const Task& task;
  const Network& network;
  int64_t steps = 0;
  const std::string& matmul_path;
  int64_t static_bytes = 0;  // weights and optimizer state
};

// Lines: model, data, run, preset.
std::vector<std::string> description(const Described& run);

}  // namespace compact
