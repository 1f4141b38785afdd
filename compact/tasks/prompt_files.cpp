// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/prompt_files.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/data/samples/split.h"
#include "compact/data/text/prepare.h"
#include "compact/tasks/language_task.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/splits.h"

namespace compact {
namespace {

uint64_t checksum_of(const PromptSamples& samples) {
  uint64_t sum = 0;
  for (size_t i = 0; i < samples.ids.size(); ++i) {
    const auto& ids = samples.ids[i];
    sum = derive(derive(sum, static_cast<uint64_t>(samples.prompt_lengths[i])),
                 label_of(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(ids[0])));
    for (const auto& [from, to] : samples.silent[i]) {
      sum = derive(derive(sum, static_cast<uint64_t>(from)), static_cast<uint64_t>(to));
    }
  }
  return sum;
}

Truncation truncation_of(const std::string& name) {
  return name == "end"     ? Truncation::kEnd
         : name == "start" ? Truncation::kStart
                           : Truncation::kDrop;
}

}  // namespace

void check_prompts(const TrainConfig& c) {
  COMPACT_CHECK(c.test_file.empty(), "--test_file: language models have a --validation_file only");
  for (const auto* files : {&c.train_file, &c.validation_file}) {
    COMPACT_CHECK(files->size() <= 1, "--task ", c.task, " takes one file of each kind, not ",
                  files->size());
  }
}

PromptFiles::PromptFiles(const TrainConfig& config, const Opening& opening, bool pairs, Task& task,
                         std::vector<std::string>& warnings)
    : c_(config), task_(task), warnings_(warnings) {
  const bool data = !c_.train_file.empty() || !c_.validation_file.empty();
  tokenizer_ = tokenizer_of(c_, data);
  task.lengths_vary = true;
  const ModelShape model = set_language_model(c_, opening, tokenizer_.get(), task, warnings);
  if (!data) return;
  padding_ = {.pad = static_cast<int64_t>(tokenizer_->end_of_text()),
              .max_length = c_.block_size * (pairs ? 2 : 1)};
  // One token more, since the last one is only a target.
  options_ = {.prompt = c_.prompt_column,
              .completion = pairs ? c_.chosen_column : c_.completion_column,
              .rejected = pairs ? c_.rejected_column : "",
              .max_length = c_.block_size + 1,
              .begin = begin_of_prompt(*tokenizer_, model.tokens),
              .truncation = truncation_of(c_.truncation),
              .strict = c_.strict};
}

PromptFiles::Samples PromptFiles::read(const std::string& file) {
  const std::string tokens = token_file_at(file);
  auto samples = std::make_shared<const PromptSamples>(
      tokens.empty() ? read_prompts(file, *tokenizer_, options_)
                     : read_token_samples(tokens, *tokenizer_, options_));
  for (const std::string& line : samples->warnings) warnings_.push_back(line);
  return samples;
}

std::unique_ptr<PromptDataset> PromptFiles::part(Samples samples, std::vector<int64_t> chosen,
                                                 bool packed) {
  auto part = std::make_unique<PromptDataset>(std::move(samples), std::move(chosen), padding_,
                                              key_of(c_, RandomUse::kData), packed);
  longest_row_ = std::max(longest_row_, part->longest_row());
  if (!options_.rejected.empty()) task_.pairs.push_back(part.get());
  return part;
}

bool PromptFiles::open(
    FunctionRef<std::unique_ptr<PromptDataset>(Samples, std::vector<int64_t>)> training) {
  if (!c_.validation_file.empty()) {
    const Samples samples = read(c_.validation_file[0]);
    task_.validation = part(samples, all_samples(samples->size()));
  }
  if (c_.train_file.empty()) return false;
  const Samples samples = read(c_.train_file[0]);
  task_.checksum = checksum_of(*samples);
  split_samples(
      c_, samples->size(),
      [&](std::vector<int64_t> chosen, bool trains) {
        return trains ? training(samples, std::move(chosen)) : part(samples, std::move(chosen));
      },
      task_, warnings_);
  return true;
}

}  // namespace compact
