// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/splits.h"

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/base/text.h"
#include "compact/config/option.h"
#include "compact/data/samples/split.h"
#include "compact/tasks/setup.h"

namespace compact {

void split_samples(const TrainConfig& c, int64_t count, const MakePart& make, Task& task,
                   std::vector<std::string>& warnings) {
  say_unused_split(c, warnings);
  const double part = task.validation ? 0 : c.validation_split;
  SampleSplit split = drawn_split(count, part, derive(key_of(c, RandomUse::kData), 1));
  if (!split.held_out.empty()) task.validation = make(std::move(split.held_out), false);
  if (part > 0 && !task.validation) {
    warnings.push_back(cat("nothing is held out to evaluate on: --validation_split ",
                           number_text(part), " of ", count, " samples is less than one"));
  }
  task.train = make(std::move(split.train), true);
}

void say_unused_split(const TrainConfig& c, std::vector<std::string>& warnings) {
  if (c.validation_file.empty() || c.validation_split == TrainConfig().validation_split) return;
  warnings.push_back("--validation_split takes no effect: there is a --validation_file");
}

std::string held_out_text(const Task& task) {
  return cat(task.validation ? ", validation " + format_count(task.validation->size()) : "",
             task.test ? ", test " + format_count(task.test->size()) : "");
}

}  // namespace compact
