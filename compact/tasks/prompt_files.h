// SPDX-License-Identifier: Apache-2.0
// The files of the tasks on prompts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compact/base/function_ref.h"
#include "compact/data/text/prompt_dataset.h"
#include "compact/tasks/task.h"

namespace compact {

// Throws InputError on a --test_file and on several files of a kind.
void check_prompts(const TrainConfig& config);

class PromptFiles {
 public:
  // Sets the task's model; of `pairs`, a row has two answers. Everything is kept by reference.
  // Throws InputError where model, tokenizer and --block_size do not fit together.
  PromptFiles(const TrainConfig& config, const Opening& opening, bool pairs, Task& task,
              std::vector<std::string>& warnings);

  // A data set of the samples with these numbers.
  using Samples = std::shared_ptr<const PromptSamples>;
  std::unique_ptr<PromptDataset> part(Samples samples, std::vector<int64_t> chosen,
                                      bool packed = false);
  // Opens what is named: validation data, and training data as `training` makes them. Returns
  // whether there are such.
  bool open(FunctionRef<std::unique_ptr<PromptDataset>(Samples, std::vector<int64_t>)> training);

  const Padding& padding() const { return padding_; }
  int64_t longest_row() const { return longest_row_; }  // of all data sets so far

 private:
  Samples read(const std::string& file);

  const TrainConfig& c_;
  Task& task_;
  std::vector<std::string>& warnings_;
  std::unique_ptr<Tokenizer> tokenizer_;
  PromptOptions options_;
  Padding padding_;
  int64_t longest_row_ = 0;
};

}  // namespace compact
