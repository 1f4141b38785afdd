// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/references.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/data/samples/split.h"
#include "compact/data/text/prompt_dataset.h"
#include "compact/io/json_file.h"
#include "compact/tasks/load_weights.h"
#include "compact/tasks/task_model.h"

namespace compact {
namespace {

bool same_bytes(const std::filesystem::path& one, const std::filesystem::path& two) {
  const auto size = static_cast<int64_t>(std::filesystem::file_size(one));
  return std::filesystem::file_size(two) == std::filesystem::file_size(one) &&
         read_text(one, size) == read_text(two, size);
}

}  // namespace

std::unique_ptr<Network> reference_model(const TrainConfig& config, const Task& task,
                                         at::Device device, std::vector<std::string>& warnings) {
  if (task.pairs.empty() || config.reference == "start" || config.reference == "none") {
    return nullptr;
  }
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
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"}) {
    const std::filesystem::path one = std::filesystem::path(c.reference) / name,
                                two = std::filesystem::path(config.model_name_or_path) / name;
    if (is_file(one) && is_file(two) && same_bytes(one, two)) break;
    if (!is_file(one) || !is_file(two)) continue;
    warnings.push_back(cat("--reference ", c.reference, " has another ", name, " than ",
                           config.model_name_or_path,
                           ": its log probabilities mean something only if ids mean the same"));
    break;
  }
  std::unique_ptr<Network> network = own.network(c, Policy::preset("exact"), device);
  const LoadedWeights loaded = load_weights(*network, c.reference);
  COMPACT_CHECK(loaded.fresh.empty(), c.reference, ": has no tensor `", loaded.fresh[0], "`");
  warnings.insert(warnings.end(), loaded.warnings.begin(), loaded.warnings.end());
  return network;
}

std::unique_ptr<Network> reference_of_run(const TrainConfig& config, const Task& task,
                                          at::Device device, std::vector<std::string>& warnings) {
  const std::string& folder = config.model_name_or_path;
  if (config.reference != "start") return reference_model(config, task, device, warnings);
  if (has_adapters(folder)) {
    auto base = task.network(config, Policy::preset("exact"), device);
    load_base_weights(*base, folder);
    return base;
  }
  TrainConfig c = config;
  const std::string run = folder + "/train_config.json";
  if (is_file(run)) c.reference = read_json(run).value("model_name_or_path", "");
  COMPACT_CHECK(
      c.reference != "start" && !c.reference.empty() && has_weights(c.reference), folder,
      ": what it was trained from is ",
      c.reference == "start" || c.reference.empty() ? "not known" : "not in " + c.reference,
      ": pairs are evaluated beside --reference DIR, or none");
  warnings.push_back(cat("the reference is ", c.reference, ", from which ", folder,
                         " was trained; --reference names another"));
  return reference_model(c, task, device, warnings);
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
      if (c.measure_steps > 0) {
        all.emplace_back();
        continue;
      }
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
