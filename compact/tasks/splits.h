// SPDX-License-Identifier: Apache-2.0
// Which samples a task trains on and which it evaluates on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "compact/tasks/task.h"

namespace compact {

// Makes a data set of the samples with these numbers. `training`: samples may be augmented.
using MakePart =
    std::function<std::unique_ptr<Dataset>(std::vector<int64_t> samples, bool training)>;

// Sets `train` to `count` samples. Where the task has no validation set, --validation_split of them
// are held out as one, drawn by the seed.
void split_samples(const TrainConfig& config, int64_t count, const MakePart& make, Task& task,
                   std::vector<std::string>& warnings);

// Adds a line where --validation_split is given beside a --validation_file.
void say_unused_split(const TrainConfig& config, std::vector<std::string>& warnings);

// ", validation 1,000, test 500", without sets that do not exist.
std::string held_out_text(const Task& task);

}  // namespace compact
