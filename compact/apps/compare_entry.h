// SPDX-License-Identifier: Apache-2.0
// A run of a comparison in words: `[NAME=]PRESET [--flag value...]...`. Quotes, " or ', keep spaces
// and commas together.
#pragma once

#include <string>
#include <vector>

#include "compact/config/config.h"

namespace compact {

struct CompareEntry {
  std::string name;    // of its folder and in tables; the preset's where none is given
  std::string flags;   // what it has beside the preset, as written
  TrainConfig config;  // as it is trained, but for output_dir
  std::vector<std::string> arguments;  // of `compact train`, which give that configuration
  // Above 0: --budget is this part of the first run's peak, and not among `arguments`.
  double budget_share = 0;
};

// The runs of "A,B,...", a text each. Throws InputError where a quote is not closed.
std::vector<std::string> compare_texts(const std::string& presets);

// `text` stands above what all runs share: `config`, which `arguments` (each `--name=value`) give.
// A preset is a name or a policy file, which then stands upon preset `off`. Throws InputError on
// unknown presets, flags and values, and on a flag that is given twice.
CompareEntry compare_entry(const std::string& text, const TrainConfig& config,
                           const std::vector<std::string>& arguments);

}  // namespace compact
