// SPDX-License-Identifier: Apache-2.0
// The numbers of classes in the data and in the head of a model that is already trained.
#pragma once

#include <string>
#include <vector>

#include "compact/config/config.h"
#include "compact/tasks/sequence_task.h"

namespace compact {

// Renumbers the texts' classes, the positive one included, as in the head of --model_name_or_path
// where that was trained for the same classes (names may differ in case). A head of that size for
// other classes is trained on with a warning. For evaluation it throws InputError, as does a head
// for values where there are classes. Heads without names (LABEL_0, or 0, ...) are taken to have
// the data's order.
void take_numbers_of_head(const TrainConfig& config, const Opening& opening, SequenceTexts& texts,
                          std::vector<std::string>& warnings);

}  // namespace compact
