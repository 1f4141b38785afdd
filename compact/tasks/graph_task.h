// SPDX-License-Identifier: Apache-2.0
// The model of tasks on graphs.
#pragma once

#include <string>

#include "compact/models/model_config.h"
#include "compact/tasks/task.h"

namespace compact {

// Sets the task's model: --model in the configured widths for so many features and classes, or that
// of a folder, which has widths of its own. Throws InputError where the folder's model is for
// others.
ModelShape set_graph_model(const TrainConfig& config, int64_t features, int64_t classes, Task& task,
                           std::vector<std::string>& warnings);

// Throws InputError where `what` (a file's nodes, graphs) have other features or more classes than
// the model.
void check_graphs(const ModelShape& model, int64_t features, int64_t classes,
                  const std::string& what);

// Zeros of a batch's sizes on a device.
StepInputs inputs_like(const Batch& batch, at::Device device);

// Throws InputError on settings that no task on graphs can have; opens no file.
void check_graph_settings(const TrainConfig& config);

// --train_file, or where that is not given --validation_file.
const std::string& graph_file_of(const TrainConfig& config);
// The checksum of a file, or of all files in a folder.
uint64_t path_checksum(const std::string& path);

}  // namespace compact
