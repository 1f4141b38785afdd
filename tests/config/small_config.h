// SPDX-License-Identifier: Apache-2.0
// Options of a run that nothing is wrong with.
#pragma once

#include "compact/config/config.h"

namespace compact {

inline TrainConfig valid_config() {
  TrainConfig c;
  c.model = "llama-tiny";
  c.train_file = {"x.txt"};
  c.output_dir = "out";
  return c;
}

}  // namespace compact
