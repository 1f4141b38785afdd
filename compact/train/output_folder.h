// SPDX-License-Identifier: Apache-2.0
// The folder of a run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compact/base/folder_lock.h"
#include "compact/config/config.h"

namespace compact {

// Throws InputError where --output_dir is not a writable folder and cannot be made.
void check_output_place(const TrainConfig& config);

// The folder, made where it is missing, for this run alone; what killed runs left half written in
// it is removed. Throws InputError, with nothing changed, where the folder cannot take this run:
// not writable, or another run writes there, or there is something in it and neither
// --overwrite_output_dir nor a resume. A line goes to `warnings` where others cannot be kept out.
std::unique_ptr<FolderLock> take_output_folder(const TrainConfig& config,
                                               std::vector<std::string>& warnings);

// The names, one a line, of what a run writes there beside its model and what every run writes.
inline constexpr const char* kWrittenNames = "written.txt";

// Under --overwrite_output_dir removes what an earlier run wrote, and only that.
void clear_output_folder(const TrainConfig& config);

}  // namespace compact
