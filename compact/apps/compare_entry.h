// SPDX-License-Identifier: Apache-2.0
// The text of one run of a comparison: `[NAME=]PRESET [--flag value...]...`. Quotes, " or ', keep
// spaces and commas together.
#pragma once

#include <string>
#include <vector>

#include "compact/config/config.h"

namespace compact {

struct CompareEntry {
  std::string name;                    // in tables and of its folder; by default the preset's
  std::string flags;                   // its flags beside the preset, as written
  TrainConfig config;                  // of the run, without output_dir
  std::vector<std::string> arguments;  // of `compact train`, for that configuration
  // Above 0: --budget is this part of the first run's peak, and not among `arguments`.
  double budget_share = 0;
};

// Splits "A,B,..." into the texts of runs. Throws InputError where a quote is not closed.
std::vector<std::string> compare_texts(const std::string& presets);

// `text` overrides what all runs share: `config`, which `arguments` (each `--name=value`) give.
// PRESET is a name or a policy file, which is applied to preset `off`. Throws InputError on unknown
// presets, flags and values, and on a flag that is given twice.
CompareEntry compare_entry(const std::string& text, const TrainConfig& config,
                           const std::vector<std::string>& arguments);

}  // namespace compact
