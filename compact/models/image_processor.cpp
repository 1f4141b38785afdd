// SPDX-License-Identifier: Apache-2.0
#include "compact/models/image_processor.h"

#include <nlohmann/json.hpp>

namespace compact {

std::map<std::string, std::string> image_processor_files(const ModelShape& shape) {
  const nlohmann::json processor = {{"image_processor_type", "ViTImageProcessor"},
                                    {"do_resize", true},
                                    {"size", {{"height", shape.height}, {"width", shape.width}}},
                                    {"do_rescale", true},
                                    {"rescale_factor", 1 / 255.0},
                                    {"do_normalize", true},
                                    {"image_mean", shape.mean},
                                    {"image_std", shape.deviation}};
  return {{"preprocessor_config.json", processor.dump(2) + "\n"}};
}

}  // namespace compact
