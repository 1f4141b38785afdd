// SPDX-License-Identifier: Apache-2.0
// The encoder, its head and the data of tasks on sentences and pairs of sentences.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compact/data/text/labelled_texts.h"
#include "compact/tasks/task.h"

namespace compact {

// Texts as files have them; the classes are those of `train`, unless the model has its own.
struct SequenceTexts {
  std::optional<LabelledTexts> train, validation, test;
  std::optional<size_t> positive = {};  // the class that f1 is of; none: the head's second
};

// Whether the model of --model_name_or_path was trained on pairs of texts; none where its
// config.json does not say so.
std::optional<bool> trained_on_pairs(const TrainConfig& config);

// The task of these texts. Without a validation set --validation_split holds part of the training
// set out. Throws InputError where tokenizer, model and texts do not fit together.
Task open_sequences(const TrainConfig& config, const Opening& opening, SequenceTexts texts,
                    std::vector<std::string> metrics, std::vector<std::string>& warnings);
}  // namespace compact
