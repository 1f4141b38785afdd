// SPDX-License-Identifier: Apache-2.0
// Weights of a model folder, into a network.
#pragma once

#include <string>
#include <vector>

#include "compact/networks/network.h"

namespace compact {

// Throws InputError where the value of --model_name_or_path is nothing that is there, or a folder
// without config.json.
void check_model_folder(const std::string& folder);

struct LoadedWeights {
  std::vector<std::string> fresh;     // names of tensors that the folder lacks and that may be new
  std::vector<std::string> warnings;  // one line each
};

bool has_weights(const std::string& folder);
// Throws InputError where a folder without weights that are read has weights of another form.
void refuse_other_weights(const std::string& folder);
// Copies them by name, whatever their type. Throws InputError where a file does not have the
// checksum that it states, or a tensor is missing that may not be new or has another shape.
LoadedWeights load_weights(Network& model, const std::string& folder);

}  // namespace compact
