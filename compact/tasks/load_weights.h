// SPDX-License-Identifier: Apache-2.0
// Reads the weights of a model folder into a network.
#pragma once

#include <string>
#include <vector>

#include "compact/io/adapter_folder.h"
#include "compact/networks/network.h"

namespace compact {

// Throws InputError where the folder that an option names does not exist, or has no config.json.
void check_model_folder(const std::string& folder,
                        const std::string& option = "--model_name_or_path");

struct LoadedWeights {
  std::vector<std::string> fresh;     // tensors that the folder lacks and that may be new
  std::vector<std::string> warnings;  // one line each
};

bool has_weights(const std::string& folder);  // or adapters beside those of another folder
bool has_adapters(const std::string& folder);
bool has_whole_weights(const std::string& folder);
// The folder of the model that a folder's adapters were trained with. Throws InputError where it
// has no weights.
std::string base_of(const std::string& folder, const AdapterFolder& adapters);
// For a folder without readable weights: throws InputError where it has some in another format.
void refuse_other_weights(const std::string& folder);
// Copies the folder's weights by name, whatever their type, and adds its adapters' products. Throws
// InputError on a file with a wrong checksum, on a tensor that has another shape, or is missing and
// may not be new, and where whole weights lie beside adapters.
LoadedWeights load_weights(Network& model, const std::string& folder);
// The same of a folder of adapters, but without these: the base, as it was beside them.
LoadedWeights load_base_weights(Network& model, const std::string& folder);

}  // namespace compact
