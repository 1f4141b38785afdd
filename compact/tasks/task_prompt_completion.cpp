// SPDX-License-Identifier: Apache-2.0
// Completions of prompts: the loss is on the completion's tokens only. And pairs of them, of which
// one was preferred.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/base/text.h"
#include "compact/config/option.h"
#include "compact/data/samples/split.h"
#include "compact/data/text/prepare.h"
#include "compact/data/text/prompt_dataset.h"
#include "compact/ops/functions/range_attention.h"
#include "compact/tasks/language_task.h"
#include "compact/tasks/load_weights.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/splits.h"

namespace compact {
namespace {

void check_prompt(const TrainConfig& c) {
  COMPACT_CHECK(c.test_file.empty(), "--test_file: language models have a --validation_file only");
  for (const auto* files : {&c.train_file, &c.validation_file}) {
    COMPACT_CHECK(files->size() <= 1, "--task ", c.task, " takes one file of each kind, not ",
                  files->size());
  }
}

void check_preference(const TrainConfig& c) {
  check_prompt(c);
  COMPACT_CHECK(c.label_smoothing_factor < 0.5,
                "--label_smoothing_factor of preferences must be below 0.5, is ",
                number_text(c.label_smoothing_factor));
  COMPACT_CHECK(c.loss_type == "sigmoid" || c.label_smoothing_factor == 0,
                "--label_smoothing_factor is for --loss_type sigmoid, not ", c.loss_type);
  if (c.reference == "start" || c.reference == "none") return;
  check_model_folder(c.reference, "--reference");
  COMPACT_CHECK(has_weights(c.reference),
                "--reference must be start, none or a folder with weights; ", c.reference,
                " has none");
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

// Rows of a pair each, the longest sample first, as the block size cuts them.
Task::MakeInputs rows_of_pairs(int64_t longest, int64_t of_both, const Padding& padding) {
  return [=](const TrainConfig& of, at::Device device, int64_t batch) {
    const int64_t block = of.block_size, end = std::min(of_both, 2 * block),
                  first = std::min({longest, block, end - 1});
    std::vector<std::array<int64_t, 3>> ranges;
    for (int64_t row = 0; row < batch; ++row) {
      ranges.insert(ranges.end(), {{row, 0, first}, {row, first, end}});
    }
    const auto ids = at::TensorOptions(device).dtype(at::kLong);
    const std::vector<int64_t> sizes = {batch, std::max(end, padding.length_for(end))};
    return StepInputs{{at::ones(sizes, ids), at::zeros({batch, 2}, ids.dtype(at::kDouble))},
                      at::ones(sizes, ids),
                      0,
                      ranges_tensor(std::move(ranges))};
  };
}

Task open_samples(const TrainConfig& c, const Opening& opening, std::vector<std::string>& warnings,
                  bool pairs) {
  Task task;
  task.unit = pairs ? "pairs" : "samples";
  if (!pairs) task.target = "tokens";
  task.lengths_vary = true;
  const bool packing = c.packing && !pairs;
  if (packing) task.rows = "rows";
  const bool data = !c.train_file.empty() || !c.validation_file.empty();
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_of(c, data);
  const ModelShape model = set_language_model(c, opening, tokenizer.get(), task, warnings);
  if (pairs && (c.model_name_or_path.empty() || !has_weights(c.model_name_or_path))) {
    warnings.push_back(
        "the model is new: preferences are for one that can answer, as of --task "
        "prompt-completion");
  }
  if (pairs) task.inputs = rows_of_pairs(c.block_size, 2 * c.block_size, {.multiple = 1});
  if (packing) {
    task.inputs = ids_of([](const TrainConfig& of) { return of.block_size; },
                         [](int64_t batch, int64_t length) {
                           return planned_ranges(batch, length, length, length);
                         });
    if (c.train_file.empty()) task.network_text += ", each row full of one sample";
  }
  if (!data) return task;
  const uint64_t key = key_of(c, RandomUse::kData);
  const Padding padding{.pad = static_cast<int64_t>(tokenizer->end_of_text()),
                        .max_length = c.block_size * (pairs ? 2 : 1)};
  // One token more, since the last one is only a target.
  const PromptOptions options{.prompt = c.prompt_column,
                              .completion = pairs ? c.chosen_column : c.completion_column,
                              .rejected = pairs ? c.rejected_column : "",
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
                           std::vector<int64_t> chosen, bool packed = false) {
    auto part = std::make_unique<PromptDataset>(of, std::move(chosen), padding, key, packed);
    longest = std::max(longest, part->longest_row());
    if (pairs) task.pairs.push_back(part.get());
    return part;
  };
  if (!c.validation_file.empty()) {
    const auto samples = read(c.validation_file[0]);
    task.validation = part_of(samples, all_samples(samples->size()));
  }
  if (c.train_file.empty()) return task;
  const auto samples = read(c.train_file[0]);
  task.checksum = checksum_of(*samples);
  MakeRanges ranges;
  const auto part_of_it = [&](std::vector<int64_t> chosen, bool trains) {
    if (trains && pairs) {
      auto part = part_of(samples, std::move(chosen));
      task.inputs = rows_of_pairs(part->longest_sample(), part->longest_inputs(), padding);
      return part;
    }
    if (!trains || !packing) return part_of(samples, std::move(chosen));
    const PromptDataset unpacked(samples, chosen, padding, key);
    auto packed = part_of(samples, std::move(chosen), true);
    task.data_text =
        packed_text(*packed, unpacked, c.per_device_train_batch_size, samples->cut, task);
    ranges = [usual = (packed->inputs() + packed->samples() - 1) / packed->samples(),
              most = packed->longest_sample()](int64_t batch, int64_t length) {
      return planned_ranges(batch, length, usual, most);
    };
    return packed;
  };
  split_samples(c, samples->size(), part_of_it, task, warnings);
  if (!pairs) {
    task.inputs = ids_of(
        [longest](const TrainConfig& of) { return std::min(longest, of.block_size); }, ranges);
  }
  if (!packing) {
    task.data_text =
        cat(format_count(task.train->size()), pairs ? " pairs" : " prompts with completions",
            " of up to ", longest, " tokens");
  }
  task.data_text += held_out_text(task);
  return task;
}

Task open_prompt(const TrainConfig& c, const Opening& opening, std::vector<std::string>& warnings) {
  return open_samples(c, opening, warnings, /*pairs=*/false);
}

Task open_preference(const TrainConfig& c, const Opening& opening,
                     std::vector<std::string>& warnings) {
  return open_samples(c, opening, warnings, /*pairs=*/true);
}

}  // namespace

// task_of_folder() never gives these: language-modeling, which is for the same models, comes first.
extern const TaskInfo prompt_completion = {
    .name = "prompt-completion",
    .summary = "completions of prompts",
    .check = check_prompt,
    .open = open_prompt,
    .use = ModelUse::kTokens,
};

extern const TaskInfo preference = {
    .name = "preference",
    .summary = "answers that were preferred to others (DPO)",
    .check = check_preference,
    .open = open_preference,
    .use = ModelUse::kTokens,
};

}  // namespace compact
