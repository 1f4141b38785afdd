// SPDX-License-Identifier: Apache-2.0
#include "compact/cli/train_flags.h"

#include <algorithm>

namespace compact::cli {
namespace {

FlagShape shape_of(const ConfigOption& option) {
  if (std::holds_alternative<bool TrainConfig::*>(option.member)) return FlagShape::kBool;
  using List = std::vector<std::string> TrainConfig::*;
  return std::holds_alternative<List>(option.member) ? FlagShape::kList : FlagShape::kOne;
}

}  // namespace

TrainFlags::TrainFlags(Flags& flags, const std::vector<std::string>& without,
                       const TrainConfig& defaults)
    : config_(defaults), defaults_(defaults) {
  flags.group("Configuration");
  flags.add("config", file_, "settings under those of flags", "FILE.toml, FILE.json");
  flags.add("print_config", print_, "show what is in force, as TOML, and stop");
  for (const ConfigOption& option : config_options()) {
    if (std::ranges::find(without, option.name) != without.end()) continue;
    flags.add({.name = option.name,
               .group = option.group,
               .help = option.help,
               .values = option.values,
               .fallback = option_text(config_, option),
               .shape = shape_of(option),
               .set = [this, name = option.name](const auto& values, const auto& source) {
                 set_option(config_, name, values, source);
               }});
  }
}

TrainConfig TrainFlags::config(const Flags& flags) {
  flags.apply();
  if (file_.empty()) return config_;
  config_ = defaults_;
  read_config_file(config_, file_);
  flags.apply();
  return config_;
}

}  // namespace compact::cli
