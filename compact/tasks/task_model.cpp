// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/task_model.h"

#include "compact/base/check.h"
#include "compact/models/families.h"
#include "compact/tasks/adapters.h"
#include "compact/tasks/nf4_folder.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/tokenizer_store.h"

namespace compact {
namespace {

Task::MakeNetwork builder_of(std::shared_ptr<const ModelConfig> model,
                             std::optional<Nf4Format> nf4) {
  return [model, nf4](const TrainConfig& c, const Policy& policy, at::Device device) {
    return model->build(
        policy, {.device = device,
                 .dtype = dtype_of(c.dtype),
                 .max_length = c.block_size,
                 .seed = key_of(c, RandomUse::kWeights),
                 .label_smoothing = c.label_smoothing_factor,
                 .preference = {preference_kind(c.loss_type), c.beta, c.label_smoothing_factor},
                 .lora = lora_of(c),
                 .nf4 = nf4,
                 .offload_folder = offload_folder_of(c)});
  };
}

}  // namespace

std::unique_ptr<ModelConfig> model_of(const TrainConfig& c) {
  const ModelUse use = task_named(c.task).use;
  return c.model.empty() ? read_model(c.model_name_or_path, use)
                         : model_named(c.model, use).config->clone();
}

void set_model(const TrainConfig& c, const ModelConfig& model, Task& task) {
  const ModelShape shape = model.shape();
  task.classes = shape.regression ? 0 : shape.classes > 0 ? shape.classes : shape.tokens.vocabulary;
  task.config = model.to_json(c.dtype);
  if (c.use_peft) task.adapter = adapter_config(c);
  const std::optional<Nf4Format> nf4 = nf4_of(c);
  if (nf4) task.config[kQuantization] = nf4_json(*nf4, c.dtype);
  task.files.merge(model.files());
  task.network = builder_of(model.clone(), nf4);
  std::unique_ptr<ModelConfig> smallest = model.clone();
  smallest->shrink();
  task.smallest = builder_of(std::move(smallest), nf4);
}

void set_tokenizer(const TrainConfig& c, const Opening& opening, const Tokenizer& tokenizer,
                   Task& task, std::vector<std::string>& warnings) {
  if (opening.only_evaluates) return;  // writes no model
  const bool begins = c.resume_from_checkpoint.empty();
  task.files.merge(tokenizer_files(tokenizer, task.config, begins ? nullptr : &warnings));
}

void check_length(const char* option, int64_t tokens, const ModelShape& shape) {
  COMPACT_CHECK(tokens <= shape.length, option, " ", tokens, " is longer than the model's ",
                shape.length_key, ", which is for ", shape.length, " tokens");
}

}  // namespace compact
