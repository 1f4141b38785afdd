// SPDX-License-Identifier: Apache-2.0
#include "compact/cli/train_flags.h"

namespace compact::cli {
namespace {

FlagShape shape_of(const ConfigOption& option) {
  if (std::holds_alternative<bool TrainConfig::*>(option.member)) return FlagShape::kBool;
  using List = std::vector<std::string> TrainConfig::*;
  return std::holds_alternative<List>(option.member) ? FlagShape::kList : FlagShape::kOne;
}

}  // namespace

void add_options(Flags& flags, uint32_t command, TrainConfig& config) {
  for (const ConfigOption& option : config_options()) {
    if (!(option.commands & command)) continue;
    flags.add({.name = option.name,
               .group = option.group,
               .help = help_of(option, command),
               .values = values_of(option),
               .fallback = option_text(config, option),
               .shape = shape_of(option),
               .set = [&config, &option](const auto& values, const auto& source) {
                 set_option(config, option.name, values, source);
               }});
  }
}

TrainFlags::TrainFlags(Flags& flags, uint32_t command, const TrainConfig& defaults)
    : config_(defaults), defaults_(defaults) {
  flags.group("Configuration");
  flags.add("config", file_, "settings, which flags override", "FILE.toml, FILE.json");
  flags.add("print_config", print_, "show what is in force, as TOML, and stop");
  add_options(flags, command, config_);
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
