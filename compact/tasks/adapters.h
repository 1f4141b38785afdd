// SPDX-License-Identifier: Apache-2.0
// LoRA's adapters of a run: their settings, and the folder that a run writes.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "compact/config/config.h"
#include "compact/io/safetensors.h"
#include "compact/networks/lora.h"
#include "compact/tasks/task.h"

namespace compact {

// Without a rank where the configuration has no adapters.
Lora lora_of(const TrainConfig& config);
// Throws InputError on settings of adapters that cannot be.
void check_adapters(const TrainConfig& config);
// adapter_config.json by the options alone, whose target_modules may still be `all-linear`.
nlohmann::json adapter_config(const TrainConfig& config);

// The tensors that are trained: the model's, or its adapters' alone.
NamedTensors trained_tensors(const Network& network);
// adapter_config.json of a network with adapters.
nlohmann::json adapter_config(const Task& task, const Network& network);
// Writes these tensors into an existing folder, with config.json; and reads them.
void write_trained(const std::filesystem::path& folder, const Task& task, const Network& network);
void load_trained(Network& network, const std::string& folder);

}  // namespace compact
