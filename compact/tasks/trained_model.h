// SPDX-License-Identifier: Apache-2.0
// A model folder opened with the data of its task.
#pragma once

#include <memory>

#include "compact/config/config.h"
#include "compact/networks/network.h"
#include "compact/tasks/task.h"

namespace compact {

struct TrainedModel {
  TrainConfig config;  // with the task's defaults
  Task task;           // with the data of --validation_file, or of --data_dir
  std::unique_ptr<Network> network;
  std::vector<std::string> warnings;  // about its files, one line each
};

// --model_name_or_path with its weights, on --device. With --task_name the data are that task's
// files of GLUE. Throws InputError where the folder or the data are not named, cannot be read or do
// not fit together.
TrainedModel open_trained_model(TrainConfig config);

}  // namespace compact
