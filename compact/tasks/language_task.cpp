// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/language_task.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/ops/functions/range_attention.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/task_model.h"

namespace compact {

std::vector<uint32_t> begin_of_prompt(const Tokenizer& tokenizer, const TokenIds& known) {
  if (const std::optional<SequenceFormat> format = tokenizer.sequence_format()) {
    return format->begin;
  }
  if (!known.bos) return {};
  return {static_cast<uint32_t>(*known.bos)};
}

ModelShape set_language_model(const TrainConfig& c, const Opening& opening,
                              const Tokenizer* tokenizer, Task& task,
                              std::vector<std::string>& warnings) {
  const std::unique_ptr<ModelConfig> model = model_of(c);
  ModelShape shape = model->shape();
  shape.dropout = c.dropout;
  TokenIds own;
  if (tokenizer) {
    for (std::string& line : tokenizer->warnings()) warnings.push_back(std::move(line));
    own = {.vocabulary = tokenizer->vocabulary(),
           .bos = {},
           .eos = {tokenizer->end_of_text()},
           .pad = {}};
    for (const uint32_t id : tokenizer->ends()) {
      if (std::ranges::find(own.eos, id) == own.eos.end()) own.eos.push_back(id);
    }
  }
  if (c.model.empty()) {
    const int64_t vocabulary = shape.tokens.vocabulary;
    COMPACT_CHECK(!tokenizer || tokenizer->vocabulary() <= vocabulary, "--tokenizer ",
                  tokenizer->spec(), " has ", tokenizer->vocabulary(), " tokens, the model of ",
                  c.model_name_or_path, " only ", vocabulary);
    if (tokenizer && !reads_with_own_tokenizer(c)) {
      if (tokenizer->spec().starts_with("prepared")) {
        warnings.push_back(
            cat("--tokenizer ", tokenizer->spec(), " has other files than ", c.model_name_or_path,
                ": the ids mean what the model knows only if both are one tokenizer"));
      }
      own.vocabulary = vocabulary;
      shape.tokens = own;
    }
  } else {
    if (tokenizer) shape.tokens = own;
    shape.length = std::max(shape.length, c.block_size);
  }
  model->fit(shape);
  shape = model->shape();
  check_length("--block_size", c.block_size, shape);
  set_model(c, *model, task);
  if (has_no_dropout(c)) {
    nlohmann::json config = std::move(task.config);  // for tuning it further
    ModelShape without = shape;
    without.dropout = 0;
    model->fit(without);
    set_model(c, *model, task);
    task.config = std::move(config);
  }
  task.attention = model->shape().attention;
  if (tokenizer) set_tokenizer(c, opening, *tokenizer, task, warnings);
  task.network_text = cat("vocabulary ", format_count(shape.tokens.vocabulary),
                          tokenizer ? "" : " (the model's own)");
  task.inputs = ids_of([](const TrainConfig& of) { return of.block_size; });
  return shape;
}

Task::MakeInputs ids_of(std::function<int64_t(const TrainConfig&)> length, MakeRanges ranges) {
  return [length = std::move(length), ranges = std::move(ranges)](
             const TrainConfig& of, at::Device device, int64_t batch) {
    const auto ids = at::TensorOptions().device(device).dtype(at::kLong);
    const std::vector<int64_t> sizes = {batch, length(of)};
    StepInputs inputs{{at::ones(sizes, ids)}, at::ones(sizes, ids)};
    if (ranges) inputs.ranges = ranges_tensor(ranges(batch, sizes[1]));
    return inputs;
  };
}

}  // namespace compact
