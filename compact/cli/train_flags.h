// SPDX-License-Identifier: Apache-2.0
// The flags that a command takes of the one table of settings (config/option.h).
#pragma once

#include <cstdint>
#include <string>

#include "compact/cli/flags.h"
#include "compact/config/option.h"

namespace compact::cli {

// Adds them; `command` is its bit of Commands. They set `config`, whose values now are the ones
// that --help shows.
void add_options(Flags& flags, uint32_t command, TrainConfig& config);

// The flags of a command that also reads configuration files.
class TrainFlags {
 public:
  // Adds --config, --print_config and the command's options.
  TrainFlags(Flags& flags, uint32_t command, const TrainConfig& defaults = {});

  // Defaults, then the configuration file, then flags.
  TrainConfig config(const Flags& flags);
  // After config(): whether it is only to be printed.
  bool print_config() const { return print_; }

 private:
  TrainConfig config_, defaults_;
  std::string file_;
  bool print_ = false;
};

}  // namespace compact::cli
