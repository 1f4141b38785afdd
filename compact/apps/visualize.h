// SPDX-License-Identifier: Apache-2.0
// Pictures of image networks, side by side: filters of the first layer, and feature maps of one
// image.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "compact/config/config.h"

namespace compact {

struct VisualizeOptions {
  std::vector<std::string> folders;  // of models
  std::vector<std::string> layers;   // patterns of names; empty: all
  int64_t image = 0;                 // number in the file, from 0
  int64_t channels = 32;             // most maps drawn of a layer, the first ones
  TrainConfig config;                // --validation_file, --output_dir, --device, --threads
};

// Writes MODEL-filters.png, MODEL-LAYER.png and index.html, which shows them, to --output_dir, and
// a line for each to `out`. MODEL: the last part of its folder's name. Files of the same names are
// replaced, others left. Problems with a folder that can still be drawn add lines to `warnings`.
// Throws InputError on models without maps, layers that no model has and images that are not there.
void visualize(const VisualizeOptions& options, std::ostream& out,
               std::vector<std::string>& warnings);

}  // namespace compact
