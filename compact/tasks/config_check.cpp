// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/config_check.h"

#include <string>
#include <vector>

#include "compact/base/check.h"
#include "compact/config/option.h"
#include "compact/models/families.h"
#include "compact/plan/search.h"
#include "compact/tasks/adapters.h"
#include "compact/tasks/load_weights.h"
#include "compact/tasks/task.h"

namespace compact {
namespace {

constexpr const char* kModelNeeded =
    "--model NAME (see `compact list models`) or --model_name_or_path DIR";

// Throws InputError where an option besides --preset changes the policy.
void check_policy_is_open(const TrainConfig& c) {
  const ConfigOption::Member preset = &TrainConfig::preset;
  for (const ConfigOption& o : config_options()) {
    if (o.resume != ResumeRule::kPolicy || o.member == preset) continue;
    COMPACT_CHECK(!is_given(c, o), "--preset auto chooses the whole policy: --", o.name,
                  " cannot be given");
  }
}

}  // namespace

void check_config(const TrainConfig& c) {
  COMPACT_CHECK(!c.model.empty() || !c.model_name_or_path.empty(), kModelNeeded, " is needed");
  COMPACT_CHECK(c.model.empty() || c.model_name_or_path.empty(),
                "--model and --model_name_or_path name the model twice: give one");
  if (!c.model_name_or_path.empty()) check_model_folder(c.model_name_or_path);
  const TaskInfo& task = task_named(c.task);
  check_values(c);
  COMPACT_CHECK(c.max_steps > 0 || c.num_train_epochs > 0,
                "--num_train_epochs must be positive where --max_steps is not, is ",
                c.num_train_epochs);
  COMPACT_CHECK(!c.master_weights || c.dtype == "bfloat16",
                "--master_weights is for --dtype bfloat16: "
                "float32 weights are their own master");
  const int64_t passes = c.gradient_accumulation_steps;
  COMPACT_CHECK(!c.deterministic_reduce || (passes & (passes - 1)) == 0,
                "--deterministic_reduce sums as a binary tree: it needs a "
                "--gradient_accumulation_steps that is a power of two, is ",
                passes);
  COMPACT_CHECK(!c.deterministic_reduce || c.zero < 2,
                "--deterministic_reduce needs --zero 0 or 1: above that ranks are summed in "
                "every micro-batch");
  COMPACT_CHECK(!c.deterministic_reduce || c.reduce_dtype == "float32",
                "--deterministic_reduce needs --reduce_dtype float32: what is rounded before it is "
                "summed depends on how many ranks there are");
  Allowed::parse(c.allow);  // throws InputError on unknown words
  if (c.preset == "auto") check_policy_is_open(c);
  if (!c.model.empty()) model_named(c.model, task.use);
  check_adapters(c);
  if (task.check) task.check(c);
}

void check_ranks(const TrainConfig& c, int64_t ranks) {
  COMPACT_CHECK(
      !c.deterministic_reduce || (ranks & (ranks - 1)) == 0,
      "--deterministic_reduce sums as a binary tree: it needs a number of ranks that is a "
      "power of two, is ",
      ranks);
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
  COMPACT_CHECK(!c.use_peft || (!c.model_name_or_path.empty() && has_weights(c.model_name_or_path)),
                "--use_peft trains adapters beside a model that is there: --model_name_or_path DIR "
                "must be a folder with weights");
}

}  // namespace compact
