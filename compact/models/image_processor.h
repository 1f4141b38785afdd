// SPDX-License-Identifier: Apache-2.0
// preprocessor_config.json, which AutoImageProcessor of transformers reads beside a model of
// images.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "compact/models/model_config.h"

namespace compact {

// A key of this program's own, which transformers does not read: whether images are cut or
// stretched to the size.
inline constexpr const char *kFitKey = "compact_fit", *kCut = "cut", *kStretched = "stretched";

// Takes from it how images are brought to which size and by what pixels are scaled, for a shape
// that has its channels: of the processors of ViT, DeiT, ConvNext (which ResNets have), CLIP and
// BiT. Throws InputError, beginning with `where`, on another processor and on what changes pixels
// and is not done here.
void read_image_processor(const nlohmann::json& processor, std::string_view where,
                          ModelShape& shape);

// The file that does to images what the shape says, by its name. Where a shape is not square and
// images have other proportions, transformers stretches what is cut here.
std::map<std::string, std::string> image_processor_files(const ModelShape& shape);

}  // namespace compact
