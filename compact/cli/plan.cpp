// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/cli/commands.h"
#include "compact/cli/train_flags.h"
#include "compact/config/exit_codes.h"
#include "compact/config/precision.h"
#include "compact/io/json_file.h"
#include "compact/report/plan_report.h"
#include "compact/tasks/config_check.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/task.h"
#include "compact/train/plan_curve.h"
#include "compact/train/planning.h"

namespace compact::cli {
namespace {

// Without --deterministic.
StepPlan plan_of_any_order(const TrainConfig& c, const Task& task, const Policy& policy,
                           c10::DeviceType device) {
  set_deterministic(false, device);
  StepPlan plan = plan_step(step_request(c, task, policy, device));
  set_deterministic(c.deterministic, device);
  return plan;
}

}  // namespace

int run_plan(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact plan", command.summary);
  std::string json, page;
  bool pareto = false, max_batch = false;
  StatedSpeed stated;
  double tflops = stated.products * 1e-12, gbps = stated.bytes * 1e-9;
  flags.group("Plan");
  flags.add("json", json, "write the figures here, too", "FILE");
  flags.add("pareto", pareto, "predicted step time against peak, lossless and lossy");
  flags.add("chart", page, "with --pareto: draw the curve into a page", "FILE.html");
  flags.add("max_batch", max_batch, "the largest micro-batch that fits --budget");
  flags.add("device_tflops", tflops,
            "speed of products of a GPU; 0: as known of the one here, else of an H100", "X");
  flags.add("device_gbps", gbps, "bytes that it reads and writes a second, in 10^9; 0: so, too",
            "X");
  TrainConfig defaults;
  defaults.tokenizer.clear();  // not named: the vocabulary of the model
  TrainFlags settings(flags, Commands::kPlan, defaults);
  if (!flags.parse(arguments)) {
    std::cout << flags.help();
    return kExitOk;
  }
  TrainConfig c = settings.config(flags);
  if (settings.print_config()) {
    std::cout << config_toml(c);
    return kExitOk;
  }
  check_config(c);
  c = for_task(c);
  if (!task_named(c.task).planned_from_data) {
    // A run gives a new model the vocabulary that its text is read with.
    const bool read = !c.train_file.empty() && c.tokenizer.empty() && !c.model.empty();
    if (read) c.tokenizer = tokenizer_of(c, /*data=*/true)->spec();
    c.train_file.clear();
  }
  std::vector<std::string> warnings;
  const c10::DeviceType device = planned_device_of(c.device, warnings);
  const bool cuda = device == c10::kCUDA;
  COMPACT_CHECK(page.empty() || pareto, "--chart takes no effect without --pareto");
  COMPACT_CHECK(page.empty() || page.ends_with(".html"), "--chart ", page,
                ": a page's name ends in .html");
  if (!pareto) check_budget(c);
  // As a run would: both decide what products take beside their operands.
  if (c.threads > 0) at::set_num_threads(static_cast<int>(c.threads));
  if (!cuda) set_matmul_precision(c.matmul_precision, at::kCPU);
  set_deterministic(c.deterministic, device);
  stated = {.products = tflops * 1e12, .bytes = gbps * 1e9};

  const Task task = task_named(c.task).open(c, {}, warnings);
  const bool automatic = c.preset == "auto";
  Policy policy = automatic ? Policy() : make_policy(c, warnings);
  nlohmann::ordered_json result;
  result["model"] = c.model.empty() ? c.model_name_or_path : c.model;
  result["preset"] = c.preset;
  result["device"] = cuda ? "cuda" : "cpu";
  if (max_batch) {
    const MaxBatch found = largest_batch(c, task, policy, device, stated);
    c.per_device_train_batch_size = found.batch;
    std::cout << found.text;
    result["max_batch"] = found.batch;
  }
  StepPlan plan;
  if (automatic) {
    const Chosen chosen = planner_for(c, task, device, stated).choose(budget_of(c));
    policy = chosen.policy;
    for (const std::string& line : choice_lines(chosen)) std::cout << line << "\n";
    for (const std::string& line : split(policy.str(), '\n')) {
      if (!line.empty()) std::cout << "         " << line << "\n";
    }
    plan = chosen.plan;
    result["lossless"] = chosen.lossless;
    result["added_flops"] = chosen.added_products;
    result["step_seconds"] = chosen.seconds;
    result["added_seconds"] = chosen.added_seconds;
    result["gradient_error"] = chosen.error;
  } else {
    std::string note;
    plan = plan_within(c, task, policy, device, budget_of(c), note);
    if (!note.empty()) std::cout << note << "\n";
  }
  result["policy"] = policy.str();
  result.update(plan_json(plan, device));
  std::cout << "model    " << result["model"].get<std::string>() << ", "
            << format_count(plan.parameters) << " parameters, " << task.network_text << ", "
            << c.dtype << " on " << (cuda ? "cuda" : "cpu") << ", "
            << c.per_device_train_batch_size;
  if (task.units > 1) std::cout << " x " << task.units;
  std::cout << " " << task.unit;
  if (c.gradient_accumulation_steps > 1) std::cout << " x " << c.gradient_accumulation_steps;
  std::cout << ", " << c.optim << ", preset " << c.preset << "\n" << plan_table(plan, device);
  if (c.deterministic && cuda) {
    const int64_t more = plan.reserved - plan_of_any_order(c, task, policy, device).reserved;
    std::cout << "--deterministic takes " << format_bytes(more) << " of the reserved bytes\n";
    result["deterministic_bytes"] = more;
  }
  for (const std::string& w : warnings) std::cout << "warning: " << w << "\n";
  if (pareto) {
    const PlanCurve curve = plan_curve(c, task, device, stated);
    std::cout << "\n" << curve.text;
    result["pareto"] = curve.json;
    if (!page.empty()) write_curve_page(curve, page);
  }
  if (!json.empty()) write_json(json, result);
  if (!c.budget.empty()) {
    check_fits(c, task, policy, device, plan,
               {budget_of(c), cat("--budget, under preset ", c.preset)},
               /*resumed=*/false);
  }
  return kExitOk;
}

}  // namespace compact::cli
