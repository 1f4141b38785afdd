// SPDX-License-Identifier: Apache-2.0
// Answers of which one was preferred to the other: the loss is that of a pair.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/config/option.h"
#include "compact/ops/functions/range_attention.h"
#include "compact/tasks/load_weights.h"
#include "compact/tasks/prompt_files.h"
#include "compact/tasks/splits.h"

namespace compact {
namespace {

void check_preference(const TrainConfig& c) {
  check_prompts(c);
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

Task open_preference(const TrainConfig& c, const Opening& opening,
                     std::vector<std::string>& warnings) {
  Task task;
  task.unit = "pairs";
  PromptFiles files(c, opening, /*pairs=*/true, task, warnings);
  if (c.model_name_or_path.empty() || !has_weights(c.model_name_or_path)) {
    warnings.push_back(
        "the model is new: preferences are for one that can answer, as of --task "
        "prompt-completion");
  }
  task.inputs = rows_of_pairs(c.block_size, 2 * c.block_size, {.multiple = 1});
  const auto training = [&](const PromptFiles::Samples& samples, std::vector<int64_t> chosen) {
    auto part = files.part(samples, std::move(chosen));
    task.inputs = rows_of_pairs(part->longest_sample(), part->longest_inputs(), files.padding());
    return part;
  };
  if (!files.open(training)) return task;
  task.data_text = cat(format_count(task.train->size()), " pairs of up to ", files.longest_row(),
                       " tokens", held_out_text(task));
  return task;
}

}  // namespace

extern const TaskInfo preference = {
    .name = "preference",
    .summary = "answers that were preferred to others (DPO)",
    .check = check_preference,
    .open = open_preference,
    .use = ModelUse::kTokens,
};

}  // namespace compact
