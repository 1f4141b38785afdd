// SPDX-License-Identifier: Apache-2.0
// The flags of `train` and `compare`, from the one table of settings (config/config.h).
#pragma once

#include <string>
#include <vector>

#include "compact/cli/flags.h"
#include "compact/config/config.h"

namespace compact::cli {

class TrainFlags {
 public:
  // Adds --config, --print_config and all settings but those named.
  TrainFlags(Flags& flags, const std::vector<std::string>& without,
             const TrainConfig& defaults = {});

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
