// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/references.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "compact/base/check.h"
#include "compact/data/samples/split.h"
#include "compact/data/text/prompt_dataset.h"
#include "compact/tasks/load_weights.h"
#include "compact/tasks/task_model.h"

namespace compact {

std::unique_ptr<Network> reference_model(const TrainConfig& config, const Task& task,
                                         at::Device device, std::vector<std::string>& warnings) {
  if (config.reference == "start" || config.reference == "none") return nullptr;
  TrainConfig c = config;
  c.model.clear();
  c.model_name_or_path = c.reference;
  c.use_peft = c.load_in_4bit = false;
  const std::unique_ptr<ModelConfig> model = model_of(c);
  const int64_t vocabulary = model->shape().tokens.vocabulary;
  COMPACT_CHECK(vocabulary == task.classes, "--reference ", c.reference, " has ", vocabulary,
                " tokens, the model ", task.classes, ": both must read the same ids");
  check_length("--block_size", c.block_size, model->shape());
  Task own;
  set_model(c, *model, own);
  std::unique_ptr<Network> network = own.network(c, Policy::preset("exact"), device);
  const LoadedWeights loaded = load_weights(*network, c.reference);
  COMPACT_CHECK(loaded.fresh.empty(), c.reference, ": has no tensor `", loaded.fresh[0], "`");
  warnings.insert(warnings.end(), loaded.warnings.begin(), loaded.warnings.end());
  return network;
}

int64_t set_references(const TrainConfig& c, Task& task, const Network& model, int64_t trained,
                       const Progress& progress, Group& group) {
  const int64_t batch = c.per_device_train_batch_size;
  std::vector<std::vector<int64_t>> all;
  int64_t total = 0, done = 0;
  for (const PromptDataset* data : task.pairs) {
    std::vector<int64_t> numbers;
    if (data == task.train.get()) {
      numbers = data->order(0);
      numbers.resize(static_cast<size_t>(std::min(trained, data->size())));
    } else {
      numbers = some_samples(data->size(), c.max_eval_samples);
    }
    total += std::ssize(numbers);
    all.push_back(std::move(numbers));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    PromptDataset& data = *task.pairs[i];
    const at::Tensor log_probs = at::zeros({data.size(), 2}, at::kDouble);
    for (int64_t at = group.rank() * batch; at < std::ssize(all[i]); at += group.size() * batch) {
      const auto some = std::span(all[i]).subspan(
          static_cast<size_t>(at), static_cast<size_t>(std::min(batch, std::ssize(all[i]) - at)));
      const StepInputs in = inputs_of(data.numbered(some), model.device());
      const Score score = model.score(in.inputs, in.target, in.ranges);
      for (size_t row = 0; row < some.size(); ++row) {
        log_probs.select(0, some[row]).copy_(score.log_probs.select(0, static_cast<int64_t>(row)));
      }
      done += std::min(group.size() * batch, std::ssize(all[i]) - (at - group.rank() * batch));
      if (progress) progress(done, total);
    }
    group.gather_patiently("");
    group.all_reduce(log_probs);
    data.set_reference(log_probs);
  }
  return total;
}

}  // namespace compact
