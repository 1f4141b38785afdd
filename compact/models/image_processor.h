// SPDX-License-Identifier: Apache-2.0
// What AutoImageProcessor of transformers reads beside a model of images.
#pragma once

#include <map>
#include <string>

#include "compact/models/model_config.h"

namespace compact {

// preprocessor_config.json: images are brought to the shape's height and width and scaled by its
// mean and deviation.
std::map<std::string, std::string> image_processor_files(const ModelShape& shape);

}  // namespace compact
