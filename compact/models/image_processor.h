// SPDX-License-Identifier: Apache-2.0
// preprocessor_config.json, which AutoImageProcessor of transformers reads beside a model of
// images.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "compact/models/model_config.h"

namespace compact {

// Sets how a shape that has its channels brings images to a size and scales pixels, by a processor
// of ViT, DeiT, ConvNext (which ResNets have), CLIP or BiT. Throws InputError, beginning with
// `where`, on another processor, and on settings that change pixels and are not supported here.
void read_image_processor(const nlohmann::json& processor, std::string_view where,
                          ModelShape& shape);

// Applies the file in the folder of this config.json to the model, where there is one; `usual`: the
// processor where the file names none. Throws InputError as above, and where images do not become
// as large as config.json says.
void fit_to_processor(ModelConfig& model, const nlohmann::json& config,
                      const std::filesystem::path& folder, const char* usual);

// The file, by its name, by which transformers processes images as the shape says. Where a shape is
// not square and images have other proportions, transformers stretches them; here they are cut.
std::map<std::string, std::string> image_processor_files(const ModelShape& shape);

}  // namespace compact
