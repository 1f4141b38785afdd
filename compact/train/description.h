// SPDX-License-Identifier: Apache-2.0
// The lines that a run prints about itself before its first step.
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
  int64_t ranks;
  const Task& task;
  const Network& network;
  int64_t steps = 0;
  const std::string& products;                         // what products_text() said
  int64_t static_bytes = 0;                            // weights and optimizer state
  int64_t weights_elsewhere = 0, state_elsewhere = 0;  // bytes on a GPU's host or on a disk
};

// How products of this run are computed on `device`: `matmul_path` (of f32), and what products in
// bf16 reach where they are converted. These are run once, so it takes some memory.
std::string products_text(const TrainConfig& c, at::Device device, const std::string& matmul_path);

// Lines: model, data, run, preset.
std::vector<std::string> description(const Described& run);

}  // namespace compact
