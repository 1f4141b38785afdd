// SPDX-License-Identifier: Apache-2.0
// A model folder, opened for what its task reads.
#pragma once

#include <memory>

#include "compact/models/network.h"
#include "compact/train/config.h"
#include "compact/train/task.h"

namespace compact {

struct TrainedModel {
  Task task;  // with the data of --validation_file
  std::unique_ptr<Network> network;
  std::vector<std::string> warnings;  // about its files, one line each
};

// --model_name_or_path with its weights, on --device. Throws InputError where the folder, or
// --validation_file, is not named or cannot be read.
TrainedModel open_trained_model(TrainConfig config);

}  // namespace compact
