// SPDX-License-Identifier: Apache-2.0
// What tasks on graphs share: their model.
#pragma once

#include <string>

#include "compact/models/model_config.h"
#include "compact/tasks/task.h"

namespace compact {

// Sets the model of --model in the widths asked for, for so many features and classes, or that of a
// folder, which must take them. Throws InputError on others.
ModelShape set_graph_model(const TrainConfig& config, int64_t features, int64_t classes,
                           Task& task);

// Throws InputError where `what` (a file's nodes, graphs) have other features or more classes than
// the model.
void check_graphs(const ModelShape& model, int64_t features, int64_t classes,
                  const std::string& what);

// Tensors of a batch's sizes on a device, of no values.
StepInputs inputs_like(const Batch& batch, at::Device device);

// Settings that no task on graphs can have; opens no file.
void check_graph_settings(const TrainConfig& config);

// The one file that is named; that of --train_file where both are.
const std::string& graph_file_of(const TrainConfig& config);
// The checksum of a file, or of all files in a folder.
uint64_t path_checksum(const std::string& path);

}  // namespace compact
