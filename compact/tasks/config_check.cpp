// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/config_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/optim/options.h"
#include "compact/optim/schedules.h"
#include "compact/plan/budget.h"
#include "compact/tasks/load_weights.h"
#include "compact/tasks/task.h"

namespace compact {
namespace {

void one_of(const char* name, const std::string& value, std::vector<std::string> known) {
  COMPACT_CHECK(std::find(known.begin(), known.end(), value) != known.end(), "--", name,
                ": no such value `", value, "`", suggestion(value, known));
}

constexpr const char* kModelNeeded =
    "--model NAME (see `compact list models`) or --model_name_or_path DIR";

template <class T>
void at_least(const char* name, T value, T least) {
  COMPACT_CHECK(value >= least, "--", name, " must be at least ", least, ", is ", value);
}

void within(const char* name, double value, double least, double most) {
  COMPACT_CHECK(value >= least && value <= most, "--", name, " must be from ", least, " to ", most,
                ", is ", value);
}

}  // namespace

void check_config(const TrainConfig& c) {
  COMPACT_CHECK(!c.model.empty() || !c.model_name_or_path.empty(), kModelNeeded, " is needed");
  COMPACT_CHECK(c.model.empty() || c.model_name_or_path.empty(),
                "--model and --model_name_or_path name the model twice: give one");
  if (!c.model_name_or_path.empty()) check_model_folder(c.model_name_or_path);
  const TaskInfo& task = task_named(c.task);
  COMPACT_CHECK(c.validation_split >= 0 && c.validation_split < 1,
                "--validation_split must be at least 0 and below 1, is ", c.validation_split);
  at_least<int64_t>("block_size", c.block_size, 1);
  at_least<int64_t>("hidden_size", c.hidden_size, 0);
  at_least<int64_t>("num_hidden_layers", c.num_hidden_layers, 0);
  within("image_size", static_cast<double>(c.image_size), 0, 4096);
  at_least<int64_t>("max_eval_samples", c.max_eval_samples, -1);
  // Counts beyond these would pass int64, or memory before anything can be said about it.
  constexpr double kMostSamples = 1 << 30, kMostMicroBatches = 1 << 16, kMostEpochs = 1e6;
  within("per_device_train_batch_size", static_cast<double>(c.per_device_train_batch_size), 1,
         kMostSamples);
  at_least<int64_t>("per_device_eval_batch_size", c.per_device_eval_batch_size, 1);
  within("gradient_accumulation_steps", static_cast<double>(c.gradient_accumulation_steps), 1,
         kMostMicroBatches);
  at_least<int64_t>("bits_interval", c.bits_interval, 1);
  at_least<int64_t>("bits_probes", c.bits_probes, 2);
  at_least<double>("bits_guard", c.bits_guard, 0);
  COMPACT_CHECK(c.max_steps == -1 || c.max_steps > 0, "--max_steps must be positive, or -1, is ",
                c.max_steps);
  COMPACT_CHECK(c.max_steps > 0 || (c.num_train_epochs > 0 && c.num_train_epochs <= kMostEpochs),
                "--num_train_epochs must be positive and at most ", kMostEpochs, ", is ",
                c.num_train_epochs);
  std::vector<std::string> kinds;
  for (const OptimizerInfo& o : optimizers()) kinds.push_back(o.name);
  one_of("optim", c.optim, kinds);
  COMPACT_CHECK(c.learning_rate > 0, "--learning_rate must be positive, is ", c.learning_rate);
  at_least<double>("projected_learning_rate", c.projected_learning_rate, 0);
  std::vector<std::string> shapes;
  for (const ScheduleInfo* s : schedules()) shapes.push_back(s->name);
  one_of("lr_scheduler_type", c.lr_scheduler_type, shapes);
  COMPACT_CHECK(c.momentum >= 0 && c.momentum < 1, "--momentum must be in [0, 1), is ", c.momentum);
  COMPACT_CHECK(c.label_smoothing_factor >= 0 && c.label_smoothing_factor < 1,
                "--label_smoothing_factor must be in [0, 1), is ", c.label_smoothing_factor);
  at_least<double>("warmup_steps", c.warmup_steps, 0);
  within("min_lr_ratio", c.min_lr_ratio, 0, 1);
  at_least<double>("weight_decay", c.weight_decay, 0);
  COMPACT_CHECK(c.adam_beta1 >= 0 && c.adam_beta1 < 1, "--adam_beta1 must be in [0, 1), is ",
                c.adam_beta1);
  COMPACT_CHECK(c.adam_beta2 >= 0 && c.adam_beta2 < 1, "--adam_beta2 must be in [0, 1), is ",
                c.adam_beta2);
  COMPACT_CHECK(c.adam_epsilon > 0, "--adam_epsilon must be positive, is ", c.adam_epsilon);
  at_least<double>("max_grad_norm", c.max_grad_norm, 0);
  one_of("dtype", c.dtype, {"float32", "bfloat16"});
  if (!c.optim_state_dtype.empty())
    one_of("optim_state_dtype", c.optim_state_dtype, {"float32", "bfloat16", "float8"});
  COMPACT_CHECK(!c.master_weights || c.dtype == "bfloat16",
                "--master_weights is for --dtype bfloat16: "
                "float32 weights are their own master");
  one_of("matmul_precision", c.matmul_precision, {"highest", "high"});
  one_of("device", c.device, {"auto", "cpu", "cuda"});
  within("threads", static_cast<double>(c.threads), 0, 1024);
  at_least<int64_t>("seed", c.seed, 0);
  COMPACT_CHECK(c.rank >= 0, "--rank must be positive (or 0: as the policy says), is ", c.rank);
  COMPACT_CHECK(c.update_proj_gap >= -1, "--update_proj_gap must not be below -1, is ",
                c.update_proj_gap);
  at_least<double>("scale", c.scale, 0);
  if (!c.carry_moments.empty()) one_of("carry_moments", c.carry_moments, {"true", "false"});
  COMPACT_CHECK(c.budget.empty() || parse_bytes(c.budget),
                "--budget must be a positive number with a unit, as 10GiB or 800MB, is `", c.budget,
                "`");
  Allowed::parse(c.allow);
  if (c.preset == "auto") {
    COMPACT_CHECK(c.policy.empty() && c.set.empty() && c.rank == 0 && c.update_proj_gap == -1 &&
                      c.scale == 0 && c.proj_type.empty() && c.carry_moments.empty(),
                  "--preset auto chooses the whole policy: --policy, --set, --rank, "
                  "--update_proj_gap, --scale, --proj_type and --carry_moments cannot be given");
  }
  at_least<int64_t>("logging_steps", c.logging_steps, 1);
  at_least<int64_t>("eval_steps", c.eval_steps, 0);
  within("eval_epochs", c.eval_epochs, 0, kMostEpochs);
  at_least<int64_t>("save_steps", c.save_steps, 0);
  at_least<int64_t>("save_total_limit", c.save_total_limit, 0);
  task.check(c);
}

void check_budget(const TrainConfig& c) {
  COMPACT_CHECK(c.preset != "auto" || !c.budget.empty(),
                "--preset auto needs a --budget, as 10GiB");
}

void check_run(const TrainConfig& c) {
  std::vector<std::string> missing;
  if (c.model.empty() && c.model_name_or_path.empty()) missing.push_back(kModelNeeded);
  if (c.task == glue.name ? c.data_dir.empty() : c.train_file.empty())
    missing.push_back(c.task == glue.name ? "--data_dir DIR" : "--train_file FILE");
  if (c.output_dir.empty()) missing.push_back("--output_dir DIR");
  std::string all;
  for (const std::string& m : missing) all += (all.empty() ? "" : ", ") + m;
  COMPACT_CHECK(missing.empty(), all, missing.size() > 1 ? " are needed" : " is needed",
                missing.size() > 2 ? "; for example: --model llama-tiny --train_file "
                                     "book.txt --output_dir runs/one"
                                   : "");
  check_config(c);
  check_budget(c);
}

}  // namespace compact
