// SPDX-License-Identifier: Apache-2.0
// Completions of prompts: the loss is on the completion's tokens only.
#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/base/text.h"
#include "compact/data/samples/split.h"
#include "compact/data/text/prepare.h"
#include "compact/data/text/prompt_dataset.h"
#include "compact/tasks/language_task.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/splits.h"

namespace compact {
namespace {

void check_prompt(const TrainConfig& c) {
  COMPACT_CHECK(c.test_file.empty(), "--test_file: language models have a --validation_file only");
  for (const auto* files : {&c.train_file, &c.validation_file}) {
    COMPACT_CHECK(files->size() <= 1, "--task prompt-completion takes one file of each kind, not ",
                  files->size());
  }
}

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

Task open_prompt(const TrainConfig& c, const Opening& opening, std::vector<std::string>& warnings) {
  Task task;
  task.unit = "samples";
  task.target = "tokens";
  task.lengths_vary = true;
  const bool data = !c.train_file.empty() || !c.validation_file.empty();
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_of(c, data);
  const ModelShape model = set_language_model(c, opening, tokenizer.get(), task, warnings);
  if (!data) return task;
  const uint64_t key = key_of(c, RandomUse::kData);
  const Padding padding{.pad = static_cast<int64_t>(tokenizer->end_of_text()),
                        .max_length = c.block_size};
  // One token more, since the last one is only a target.
  const PromptOptions options{.prompt = c.prompt_column,
                              .completion = c.completion_column,
                              .max_length = c.block_size + 1,
                              .begin = begin_of_prompt(*tokenizer, model.tokens),
                              .truncation = c.truncation == "end"     ? Truncation::kEnd
                                            : c.truncation == "start" ? Truncation::kStart
                                                                      : Truncation::kDrop,
                              .strict = c.strict};
  const auto read = [&](const std::string& file) {
    const std::string tokens = token_file_at(file);
    auto samples = std::make_shared<const PromptSamples>(
        tokens.empty() ? read_prompts(file, *tokenizer, options)
                       : read_token_samples(tokens, *tokenizer, options));
    for (const std::string& line : samples->warnings) warnings.push_back(line);
    return samples;
  };
  int64_t longest = 0;
  const auto part_of = [&](const std::shared_ptr<const PromptSamples>& of,
                           std::vector<int64_t> chosen) {
    auto part = std::make_unique<PromptDataset>(of, std::move(chosen), padding, key);
    longest = std::max(longest, part->longest_row());
    return part;
  };
  const auto size_of = [](const PromptSamples& s) { return static_cast<int64_t>(s.ids.size()); };
  if (!c.validation_file.empty()) {
    const auto samples = read(c.validation_file[0]);
    task.validation = part_of(samples, all_samples(size_of(*samples)));
  }
  if (c.train_file.empty()) return task;
  const auto samples = read(c.train_file[0]);
  task.checksum = checksum_of(*samples);
  const auto part_of_it = [&](std::vector<int64_t> chosen, bool) {
    return part_of(samples, std::move(chosen));
  };
  split_samples(c, size_of(*samples), part_of_it, task, warnings);
  task.inputs =
      ids_of([longest](const TrainConfig& of) { return std::min(longest, of.block_size); });
  task.data_text = cat(format_count(task.train->size()), " prompts with completions of up to ",
                       longest, " tokens", held_out_text(task));
  return task;
}

}  // namespace

// task_of_folder() never gives it: language-modeling, which is for the same models, comes first.
extern const TaskInfo prompt_completion = {
    .name = "prompt-completion",
    .summary = "completions of prompts",
    .check = check_prompt,
    .open = open_prompt,
    .use = ModelUse::kTokens,
};

}  // namespace compact
