// SPDX-License-Identifier: Apache-2.0
// The folder of a run.
#pragma once

#include "compact/train/config.h"

namespace compact {

// Throws InputError where the folder cannot take this run: not writable, or something in it and
// neither --overwrite_output_dir nor a resume. Changes nothing.
void check_output_folder(const TrainConfig& config);

// Makes the folder; under --overwrite_output_dir removes what an earlier run wrote, and only that.
void make_output_folder(const TrainConfig& config);

}  // namespace compact
