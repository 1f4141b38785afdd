// SPDX-License-Identifier: Apache-2.0
// What tasks on sentences and pairs of sentences share: their encoder, its head and its data.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compact/data/text/labelled_texts.h"
#include "compact/tasks/task.h"

namespace compact {

// Texts as files have them; `train` tells the classes, unless the model does.
struct SequenceTexts {
  std::optional<LabelledTexts> train, validation, test;
  std::optional<size_t> positive = {};  // the class that f1 is of; none: the head's second
};

// The task of these texts. Where there is no validation set, --validation_split holds part of the
// training set out. Throws InputError where tokenizer, model and texts do not go together.
Task open_sequences(const TrainConfig& config, const Opening& opening, SequenceTexts texts,
                    std::vector<std::string> metrics, std::vector<std::string>& warnings);
}  // namespace compact
