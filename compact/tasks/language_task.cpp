// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/language_task.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/tasks/task_model.h"
#include "compact/tasks/tokenizer_store.h"

namespace compact {

std::vector<uint32_t> begin_of_prompt(const Tokenizer& tokenizer, const TokenIds& known) {
  if (const std::optional<SequenceFormat> format = tokenizer.sequence_format()) {
    return format->begin;
  }
  if (!known.bos) return {};
  return {static_cast<uint32_t>(*known.bos)};
}

ModelShape set_language_model(const TrainConfig& c, const Tokenizer* tokenizer, Task& task) {
  const std::unique_ptr<ModelConfig> model = model_of(c);
  ModelShape shape = model->shape();
  shape.dropout = c.dropout;
  if (c.model.empty()) {
    const int64_t vocabulary = shape.tokens.vocabulary;
    COMPACT_CHECK(!tokenizer || tokenizer->vocabulary() <= vocabulary, "--tokenizer ",
                  tokenizer->spec(), " has ", tokenizer->vocabulary(), " tokens, the model of ",
                  c.model_name_or_path, " only ", vocabulary);
    // Bytes have no files, so that they are not what the folder's ids are of.
    if (tokenizer && tokenizer->files().empty()) {
      shape.tokens.bos.reset();
      shape.tokens.eos = {static_cast<int64_t>(tokenizer->end_of_text())};
    }
  } else {
    if (tokenizer) {
      shape.tokens = {.vocabulary = tokenizer->vocabulary(),
                      .bos = {},
                      .eos = {static_cast<int64_t>(tokenizer->end_of_text())}};
    }
    shape.length = std::max(shape.length, c.block_size);
  }
  model->fit(shape);
  shape = model->shape();
  check_length("--block_size", c.block_size, shape);
  set_model(c, *model, task);
  task.attention = shape.attention;
  if (tokenizer) task.files.merge(tokenizer_files(*tokenizer, task.config));
  task.network_text = cat("vocabulary ", format_count(shape.tokens.vocabulary),
                          tokenizer ? "" : " (the model's own)");
  task.inputs = ids_of([](const TrainConfig& of) { return of.block_size; });
  return shape;
}

Task::MakeInputs ids_of(std::function<int64_t(const TrainConfig&)> length) {
  return [length = std::move(length)](const TrainConfig& of, at::Device device, int64_t batch) {
    const auto ids = at::TensorOptions().device(device).dtype(at::kLong);
    const std::vector<int64_t> sizes = {batch, length(of)};
    return StepInputs{{at::ones(sizes, ids)}, at::ones(sizes, ids)};
  };
}

}  // namespace compact
