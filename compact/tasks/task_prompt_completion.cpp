// SPDX-License-Identifier: Apache-2.0
// Completions of prompts: the loss is on the completion's tokens only.
#include <algorithm>
#include <array>

#include "compact/base/text.h"
#include "compact/tasks/language_task.h"
#include "compact/tasks/prompt_files.h"
#include "compact/tasks/splits.h"

namespace compact {
namespace {

// Rows of samples of the usual length, the last of which ends with the longest: the extras of the
// others are held while that one takes most.
std::vector<std::array<int64_t, 3>> planned_ranges(int64_t batch, int64_t length, int64_t usual,
                                                   int64_t longest) {
  std::vector<std::array<int64_t, 3>> ranges;
  for (int64_t row = 0; row < batch; ++row) {
    const int64_t before = row + 1 < batch ? length : length - std::min(longest, length);
    for (int64_t begin = 0; begin < before; begin += usual) {
      ranges.push_back({row, begin, std::min(begin + usual, before)});
    }
    if (before < length) ranges.push_back({row, before, length});
  }
  return ranges;
}

// "1,024 samples in 233 rows, 2.1 % of them padding (unpacked 48 %), 3 samples cut", and as
// figures.
std::string packed_text(const PromptDataset& packed, const PromptDataset& unpacked, int64_t batch,
                        int64_t cut, Task& task) {
  const double now = packed.padding_share(batch), before = unpacked.padding_share(batch);
  task.data_figures = {{"packing/padding_share", now},
                       {"packing/padding_share_unpacked", before},
                       {"packing/samples", static_cast<double>(packed.samples())},
                       {"packing/tokens", static_cast<double>(packed.inputs())},
                       {"packing/rows", static_cast<double>(packed.size())},
                       {"packing/samples_cut", static_cast<double>(cut)}};
  return cat(format_count(packed.samples()), " samples in ", format_count(packed.size()),
             " rows of up to ", format_count(packed.longest_row()), " tokens, ",
             formatted("%.1f %% of them padding (unpacked %.1f %%), ", 100 * now, 100 * before),
             format_count(cut), " cut");
}

Task open_prompt(const TrainConfig& c, const Opening& opening, std::vector<std::string>& warnings) {
  Task task;
  task.target = "tokens";
  if (c.packing) task.rows = "rows";
  PromptFiles files(c, opening, /*pairs=*/false, task, warnings);
  if (c.packing) {
    task.inputs = ids_of([](const TrainConfig& of) { return of.block_size; },
                         [](int64_t batch, int64_t length) {
                           return planned_ranges(batch, length, length, length);
                         });
    if (c.train_file.empty()) task.network_text += ", each row full of one sample";
  }
  MakeRanges ranges;
  const auto training = [&](const PromptFiles::Samples& samples, std::vector<int64_t> chosen) {
    if (!c.packing) {
      auto part = files.part(samples, std::move(chosen));
      task.data_text = cat(format_count(part->size()), " prompts with completions");
      return part;
    }
    const auto unpacked = files.part(samples, chosen);
    auto packed = files.part(samples, std::move(chosen), true);
    task.data_text =
        packed_text(*packed, *unpacked, c.per_device_train_batch_size, samples->cut, task);
    ranges = [usual = (packed->inputs() + packed->samples() - 1) / packed->samples(),
              most = packed->longest_sample()](int64_t batch, int64_t length) {
      return planned_ranges(batch, length, usual, most);
    };
    return packed;
  };
  if (!files.open(training)) return task;
  const int64_t longest = files.longest_row();
  task.inputs =
      ids_of([longest](const TrainConfig& of) { return std::min(longest, of.block_size); }, ranges);
  if (!c.packing) task.data_text += cat(" of up to ", longest, " tokens");
  task.data_text += held_out_text(task);
  return task;
}

}  // namespace

// task_of_folder() never gives this: language-modeling, which is for the same models, comes first.
extern const TaskInfo prompt_completion = {
    .name = "prompt-completion",
    .summary = "completions of prompts",
    .check = check_prompts,
    .open = open_prompt,
    .use = ModelUse::kTokens,
};

}  // namespace compact
