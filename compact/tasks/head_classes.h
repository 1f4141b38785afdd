// SPDX-License-Identifier: Apache-2.0
// Which class has which number: in the data, and in the head of a model that was trained before.
#pragma once

#include <string>
#include <vector>

#include "compact/config/config.h"
#include "compact/tasks/sequence_task.h"

namespace compact {

// Numbers the texts' classes, the positive one too, as the head of --model_name_or_path does, where
// that was trained for the same classes (their names may differ in case). For other classes a head
// of that size goes on with a warning in training; a model that is only evaluated is refused,
// InputError, as is one for values where there are classes. Heads without names (LABEL_0, or 0,
// ...) are taken to have the data's order.
void take_numbers_of_head(const TrainConfig& config, const Opening& opening, SequenceTexts& texts,
                          std::vector<std::string>& warnings);

}  // namespace compact
