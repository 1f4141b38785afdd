// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/task.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>

#include "compact/base/check.h"
#include "compact/base/named.h"
#include "compact/base/text.h"
#include "compact/config/other_names.h"
#include "compact/io/json_file.h"
#include "compact/kernels/kernels.h"
#include "compact/ops/functions/range_attention.h"
#include "compact/tasks/load_weights.h"
#include "compact/tasks/nf4_folder.h"
#include "compact/tasks/setup.h"

namespace compact {

std::span<const TaskInfo* const> tasks() {
  static const TaskInfo* const all[] = {&language_modeling,   &image_classification,
                                        &node_classification, &graph_classification,
                                        &text_classification, &glue,
                                        &prompt_completion,   &preference};
  return all;
}

std::vector<std::pair<std::string, const Dataset*>> Task::held_out() const {
  std::vector<std::pair<std::string, const Dataset*>> sets;
  if (validation) sets.emplace_back("eval", validation.get());
  if (test) sets.emplace_back(test_prefix, test.get());
  return sets;
}

const TaskInfo& task_named(std::string_view name) {
  const std::string here = name_here(cat("task ", name));
  return named(tasks(), name, cat("--task: no such task", here.empty() ? "" : " (" + here + ")"));
}

bool has_no_dropout(const TrainConfig& c) { return c.task == preference.name; }

TrainConfig for_task(TrainConfig c) {
  const TaskInfo& task = task_named(c.task);
  if (task.one_sample) c.per_device_train_batch_size = c.per_device_eval_batch_size = 1;
  if (c.max_eval_samples < 0) c.max_eval_samples = task.eval_samples;
  const bool tunes = !c.model_name_or_path.empty() && has_weights(c.model_name_or_path);
  const bool given = c.learning_rate >= 0;
  const bool pairs = &task == &preference;
  // Muon's updates are as large as AdamW's; those of SGD are gradients. Pairs get TRL's small ones.
  if (!given) {
    c.learning_rate = !tunes || c.optim == "sgd" ? 1e-3 : c.use_peft ? 1e-4 : 5e-5;
    if (pairs && tunes) c.learning_rate /= c.use_peft ? 10 : 50;
  }
  if (c.warmup_steps < 0) c.warmup_steps = tunes && !given ? 0.1 : 0;
  return c;
}

TrainConfig without_data(TrainConfig c) {
  const bool data = !c.train_file.empty() || !c.validation_file.empty();
  const bool trained = !c.model_name_or_path.empty() && has_weights(c.model_name_or_path);
  if (data && c.tokenizer.empty() && !trained) c.tokenizer = tokenizer_of(c, data)->spec();
  c.train_file.clear();
  c.validation_file.clear();
  return c;
}

const TaskInfo& task_of_folder(const std::string& folder) {
  check_model_folder(folder);
  const std::filesystem::path file = std::filesystem::path(folder) / "config.json";
  const ModelUse use = use_of(read_json(file), file.string());
  for (const TaskInfo* t : tasks()) {
    if (t->use == use) return *t;
  }
  fail(file.string(), ": no task is for ", name_of(use));
}

std::unique_ptr<Network> make_network(const TrainConfig& c, const Task& task, const Policy& policy,
                                      at::Device device, std::vector<std::string>& warnings) {
  auto network = task.network(c, policy, device);
  const bool blocks = std::ranges::any_of(network->parameters(), [](const Parameter* p) {
    return p->weight.dim() == 2 && (p->hidden || p->carrier);
  });
  const auto unread = [&](const char* option) {
    warnings.push_back(cat(option, " takes no effect: the model has no matrices of blocks"));
  };
  if (!blocks && c.optim == "muon") unread("--optim muon");
  if (!blocks && c.projected_learning_rate > 0) unread("--projected_learning_rate");
  if (c.model_name_or_path.empty()) return network;
  if (c.use_peft && !c.load_in_4bit && read_in_nf4(c.model_name_or_path)) {
    warnings.push_back(cat(c.model_name_or_path,
                           " is in codes of four bits, which are decoded: with --load_in_4bit they "
                           "are held as they are"));
  }
  if (has_weights(c.model_name_or_path)) {
    const auto [fresh, lines] = load_weights(*network, c.model_name_or_path);
    warnings.insert(warnings.end(), lines.begin(), lines.end());
    if (!fresh.empty()) {
      warnings.push_back(cat(c.model_name_or_path, " has no ", fresh[0],
                             fresh.size() > 1 ? cat(" and ", fresh.size() - 1, " more") : "",
                             ": new ones are trained"));
    }
  } else {
    refuse_other_weights(c.model_name_or_path);
    warnings.push_back(cat(c.model_name_or_path, " has no weights: training starts from new ones"));
  }
  return network;
}

BatchWindow next_window(const Task& task, const TrainConfig& c, Group& group) {
  const int64_t own = c.gradient_accumulation_steps * c.per_device_train_batch_size;
  BatchWindow window;
  task.train->skip(group.rank() * own);
  for (int64_t i = 0; i < c.gradient_accumulation_steps; ++i) {
    window.batches.push_back(task.train->next(c.per_device_train_batch_size));
    check_targets(window.batches.back(), task);
    const Batch& batch = window.batches.back();
    if (batch.losses) {
      window.targets += *batch.losses;
      continue;
    }
    const at::Tensor& target = batch.target;
    // A number of a regression is a target whatever it is.
    window.targets += target.is_floating_point()
                          ? target.numel()
                          : target.ne(kernels::kIgnoreIndex).sum().item<int64_t>();
    window.samples += std::ssize(batch.ranges);
  }
  task.train->skip((group.size() - 1 - group.rank()) * own);
  window.targets = group.sum_of(window.targets);
  window.samples =
      window.samples > 0 ? group.sum_of(window.samples) : samples_of_step(c, group.size());
  return window;
}

void check_targets(const Batch& batch, const Task& task) {
  const at::Tensor& all = batch.target;
  if (task.classes == 0 || all.numel() == 0) return;
  const auto [low, high] = at::aminmax(all.masked_fill(all.eq(kernels::kIgnoreIndex), 0));
  const int64_t least = low.item<int64_t>(), most = high.item<int64_t>();
  COMPACT_CHECK(least >= 0 && most < task.classes, "[task] a target must be ",
                kernels::kIgnoreIndex, " or in [0, ", task.classes, "), is ",
                least < 0 ? least : most);
}

StepInputs inputs_of(const Batch& batch, at::Device device) {
  const auto moved = [&](const at::Tensor& t) {
    return device.is_cuda() ? t.pin_memory().to(device, /*non_blocking=*/true) : t.to(device);
  };
  StepInputs result{{moved(batch.input)}, moved(batch.target)};
  for (const at::Tensor& t : batch.more) result.inputs.push_back(moved(t));
  if (!batch.ranges.empty()) result.ranges = ranges_tensor(batch.ranges);
  return result;
}

}  // namespace compact
