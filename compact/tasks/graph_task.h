// SPDX-License-Identifier: Apache-2.0
// What tasks on graphs share: their network and its config.json.
#pragma once

#include <string>

#include "compact/models/graph_network.h"
#include "compact/tasks/task.h"

namespace compact {

// The network of --model in the widths asked for, for so many features and classes; or that of a
// folder, whose model_type must be this and which must take them. Throws InputError on others.
GraphNetConfig graph_net_of(const TrainConfig& config, const std::string& model_type,
                            int64_t features, int64_t classes);

// Throws InputError where `what` (a file's nodes, graphs) have other features or more classes than
// the network.
void check_graph_net(const GraphNetConfig& net, int64_t features, int64_t classes,
                     const std::string& what);

// Sets config, network and network_text.
void set_graph_net(const GraphNetConfig& net, const std::string& model_type, Task& task);

// Tensors of a batch's sizes on a device, of no values.
StepInputs inputs_like(const Batch& batch, at::Device device);

// Settings that no task on graphs can have; opens no file.
void check_graph_settings(const TrainConfig& config);

// The one file that is named; that of --train_file where both are.
const std::string& graph_file_of(const TrainConfig& config);
// Of a file, or of all in a folder.
uint64_t path_checksum(const std::string& path);

}  // namespace compact
