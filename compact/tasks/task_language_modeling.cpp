// SPDX-License-Identifier: Apache-2.0
// Next-token prediction on text.
#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/text/block_dataset.h"
#include "compact/data/text/prepare.h"
#include "compact/tasks/language_task.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/splits.h"
#include "compact/tasks/task.h"

namespace compact {
namespace {

void check_language(const TrainConfig& c) {
  constexpr int64_t kMostTokens = int64_t{1} << 32;
  COMPACT_CHECK(c.per_device_train_batch_size <= kMostTokens / std::min(c.block_size, kMostTokens),
                "--per_device_train_batch_size times --block_size must be at most 2^32 tokens, is ",
                c.per_device_train_batch_size, " x ", c.block_size);
  COMPACT_CHECK(c.test_file.empty(), "--test_file: language models have a --validation_file only");
}

void open_data(const TrainConfig& c, const Tokenizer& tokenizer, const Progress& progress,
               std::vector<std::string>& warnings, Task& task) {
  const std::string cache = c.cache_dir.empty() ? default_cache_folder() : c.cache_dir;
  const auto open = [&](const std::vector<std::string>& inputs) {
    PrepareOptions options{.field = c.text_field, .progress = progress, .strict = c.strict};
    const CachedTokens tokens = cached_token_file(inputs, tokenizer, cache, options);
    for (const std::string& line : tokens.prepared.warnings) warnings.push_back(line);
    return std::make_shared<const TokenFile>(tokens.path);
  };
  // Blocks of the tokens in `range`; messages name the files `inputs`.
  const auto blocks = [&](const std::vector<std::string>& inputs,
                          const std::shared_ptr<const TokenFile>& file, TokenRange range) {
    const int64_t tokens = range.end - range.begin;
    COMPACT_CHECK(tokens > c.block_size, inputs[0], inputs.size() > 1 ? " and the other files" : "",
                  ": --block_size ", c.block_size, " needs at least ", c.block_size + 1,
                  " tokens, there are ", tokens,
                  tokens < file->count() ? " beside those held out to evaluate on" : "");
    return std::make_unique<BlockDataset>(file, range, c.block_size, key_of(c, RandomUse::kData));
  };
  if (!c.validation_file.empty()) {
    const auto file = open(c.validation_file);
    task.validation = blocks(c.validation_file, file, {0, file->count()});
  }
  if (c.train_file.empty()) return;
  const auto file = open(c.train_file);
  task.checksum = file->info().checksum;
  TokenRange train{0, file->count()};
  say_unused_split(c, warnings);
  if (c.validation_file.empty() && c.validation_split > 0) {
    const auto [first, last] = split_end(file->count(), c.validation_split);
    train = first;
    if (last.end - last.begin > c.block_size) {
      task.validation = blocks(c.train_file, file, last);
    } else {
      warnings.push_back(cat("no validation: the part held out has ", last.end - last.begin,
                             " tokens, a block needs ", c.block_size + 1));
    }
  }
  task.train = blocks(c.train_file, file, train);
  task.data_text = cat(format_count(task.train->size()), " blocks of ", c.block_size, " tokens",
                       held_out_text(task));
}

Task open_language(const TrainConfig& c, const Opening& opening,
                   std::vector<std::string>& warnings) {
  Task task;
  const bool data = !c.train_file.empty() || !c.validation_file.empty();
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_of(c, data);
  if (data) open_data(c, *tokenizer, opening.progress, warnings, task);
  task.unit = "tokens";
  task.units = c.block_size;
  set_language_model(c, opening, tokenizer.get(), task, warnings);
  return task;
}

}  // namespace

extern const TaskInfo language_modeling = {
    .name = "language-modeling",
    .summary = "next-token prediction on text",
    .check = check_language,
    .open = open_language,
    .use = ModelUse::kTokens,
    .eval_samples = 256,
    .planned_from_data = false,
};

}  // namespace compact
