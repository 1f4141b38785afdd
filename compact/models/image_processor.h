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

// Takes from it how images are brought to which size and by what pixels are scaled, for a shape
// that has its channels: of the processors of ViT, DeiT, ConvNext (which ResNets have), CLIP and
// BiT. Throws InputError, beginning with `where`, on another processor and on what changes pixels
// and is not done here.
void read_image_processor(const nlohmann::json& processor, std::string_view where,
                          ModelShape& shape);

// Gives a model of this config.json what the file in its folder says, where there is one: `usual`
// is the processor where it does not say which. Throws InputError as above, and where images do not
// become as large as config.json says.
void fit_to_processor(ModelConfig& model, const nlohmann::json& config,
                      const std::filesystem::path& folder, const char* usual);

// The file that does to images what the shape says, by its name. Where a shape is not square and
// images have other proportions, transformers stretches what is cut here.
std::map<std::string, std::string> image_processor_files(const ModelShape& shape);

}  // namespace compact
