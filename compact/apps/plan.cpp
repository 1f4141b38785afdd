// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/plan.h"

#include <ATen/Parallel.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <ostream>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/config/memory_limit.h"
#include "compact/config/option.h"
#include "compact/config/precision.h"
#include "compact/io/json_file.h"
#include "compact/kernels/gpu.h"
#include "compact/plan/gpu_card.h"
#include "compact/plan/launches.h"
#include "compact/report/plan_report.h"
#include "compact/tasks/config_check.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/task.h"
#include "compact/train/plan_curve.h"

namespace compact {
namespace {

// Collects the report of a plan: text for the console, and JSON.
struct Reported {
  std::ostream& out;
  nlohmann::ordered_json json;
};

// Makes a card the one that plans are for (empty: that of this machine). Returns its description.
std::string plan_for_gpu(const std::string& name) {
  if (!name.empty()) {
    kernels::set_planned_gpu(gpu_card(name).gpu());
    return std::string(planned_card().words);
  }
  const std::string& here = kernels::planned_gpu().name;
  if (!kernels::find_gpu(0)) return cat(planned_card().words, " (none was found here; see --gpu)");
  return find_gpu_card(here) ? here : cat(here, ", taken as ", planned_card().words);
}

// The configuration as its task takes it.
TrainConfig checked_config(const PlanOptions& o) {
  check_config(o.config);
  COMPACT_CHECK(o.world_size >= 1 && o.world_size <= kMostRanks, "--world_size must be in [1, ",
                kMostRanks, "], is ", o.world_size);
  TrainConfig c = for_task(o.config);
  check_ranks(c, o.world_size);
  const TrainConfig usual;
  COMPACT_CHECK(o.world_size > 1 || c.zero == usual.zero, "--zero ", c.zero,
                " takes effect with --world_size above 1 only");
  COMPACT_CHECK(o.world_size > 1 || c.reduce_dtype == usual.reduce_dtype, "--reduce_dtype ",
                c.reduce_dtype, " takes effect with --world_size above 1 only");
  return task_named(c.task).planned_from_data ? c : without_data(c);
}

// Chooses the policy under --preset auto.
StepPlan plan_of(const Plans& plans, Policy& policy, Reported& to) {
  if (plans.config().preset != "auto") {
    std::string note;
    StepPlan plan = plans.within_budget(policy, note);
    if (!note.empty()) to.out << note << "\n";
    return plan;
  }
  const Chosen chosen = plans.choose();
  policy = chosen.policy;
  for (const std::string& line : choice_lines(chosen)) to.out << line << "\n";
  for (const std::string& line : split(policy.str(), '\n')) {
    if (!line.empty()) to.out << "         " << line << "\n";
  }
  to.json["lossless"] = chosen.lossless;
  to.json["added_flops"] = chosen.added_products;
  to.json["step_seconds"] = chosen.seconds;
  to.json["added_seconds"] = chosen.added_seconds;
  to.json["gradient_error"] = chosen.error;
  return chosen.plan;
}

void report_model(const Plans& plans, const StepPlan& plan, Reported& to) {
  const TrainConfig& c = plans.config();
  const Task& task = plans.task();
  to.out << "model    " << to.json["model"].get<std::string>() << ", "
         << format_count(plan.parameters) << " parameters, " << task.network_text << ", " << c.dtype
         << " on " << to.json["device"].get<std::string>() << ", " << c.per_device_train_batch_size;
  if (task.units > 1) to.out << " x " << task.units;
  to.out << " " << task.batch_unit();
  if (c.gradient_accumulation_steps > 1) to.out << " x " << c.gradient_accumulation_steps;
  to.out << ", " << c.optim << ", preset " << c.preset << "\n" << plan_table(plan, plans.device());
}

// The rank that is planned, and what a step sends.
void report_ranks(const Plans& plans, const StepPlan& plan, Reported& to) {
  const int64_t zero = plans.config().zero;
  to.out << "ranks    " << plans.ranks() << ", zero " << zero << ": ";
  if (plan.dealt.empty()) {
    to.out << "each has all optimizer state";
  } else {
    to.out << "this is rank " << plan.rank << ", which takes the most; it has "
           << format_bytes(plan.dealt[static_cast<size_t>(plan.rank)]) << " of "
           << format_bytes(std::accumulate(plan.dealt.begin(), plan.dealt.end(), int64_t{0}))
           << " optimizer state";
  }
  to.out << "; a step sends " << format_bytes(plan.sent)
         << " in sums and copies, which its predicted time does not include\n";
  if (plan.whole > 0) {
    to.out << "         at the start and in evaluations, which hold all weights, "
           << format_bytes(plan.whole) << " and the memory of the evaluation\n";
    to.json["all_weights_bytes"] = plan.whole;
  }
  to.json["ranks"] = {{"world_size", plans.ranks()},
                      {"zero", zero},
                      {"rank", plan.rank},
                      {"state_bytes", plan.dealt},
                      {"sent_bytes_per_step", plan.sent}};
}

// Time, memory, path of products and launches of a planned step on a GPU.
void report_gpu(const Plans& plans, const Policy& policy, const StepPlan& plan,
                const std::string& gpu, Reported& to) {
  const TrainConfig& c = plans.config();
  std::vector<Operation> operations;
  plans.plan(policy, &operations);
  const GpuCard& card = planned_card();
  const GpuRates rates = plans.gpu_rates(c.matmul_precision);
  const StepTime time = step_time(operations, rates);
  const bool fits = plan.reserved <= card.memory_bytes();
  to.out << time_table(time, rates) << "gpu      " << gpu << ": a step "
         << (fits ? "takes " : "does not fit: it takes ") << format_bytes(plan.reserved) << " of "
         << format_bytes(card.memory_bytes()) << " that the driver and a context leave of "
         << card.mebibytes << " MiB\n";
  if (dtype_of(c.dtype) == at::kFloat && card.tf32_tflops() > card.float_tflops) {
    const GpuRates other = plans.gpu_rates(c.matmul_precision == "high" ? "highest" : "high");
    to.out << "products " << float_products(card, c.matmul_precision)
           << formatted(", a step of %.4g ms\n",
                        1e3 * step_time(operations, other).total().seconds);
  }
  const StepLaunches launches = launches_of(operations);
  to.out << str(launches) << "\n";
  to.json["launches"] = launches_json(launches);
  to.json["gpu"] = {
      {"name", card.name}, {"memory_bytes", card.memory_bytes()}, {"step_fits", fits}};
  to.json["time"] = time_json(time, rates);
  if (!c.deterministic) return;
  set_deterministic(false, plans.device());
  const int64_t more = plan.reserved - plans.plan(policy).reserved;
  set_deterministic(true, plans.device());
  to.out << "--deterministic takes " << format_bytes(more) << " of the reserved bytes\n";
  to.json["deterministic_bytes"] = more;
}

}  // namespace

void print_plan(const PlanOptions& o, std::ostream& out) {
  TrainConfig c = checked_config(o);
  std::vector<std::string> warnings = ignored_options(o.config);
  const c10::DeviceType device = planned_device_of(c.device, warnings);
  const bool cuda = device == c10::kCUDA;
  COMPACT_CHECK(cuda || o.gpu.empty(), "--gpu ", o.gpu, " takes effect with --device cuda only");
  COMPACT_CHECK(cuda || (o.stated.products == 0 && o.stated.bytes == 0),
                "--device_tflops and --device_gbps take effect with --device cuda only");
  const std::string gpu = cuda ? plan_for_gpu(o.gpu) : "";
  // With --gpu and no --budget, --max_batch and --preset auto use that GPU's memory.
  if (!o.gpu.empty() && c.budget.empty() && (o.max_batch || c.preset == "auto")) {
    c.budget = cat(planned_card().memory_bytes() >> 20, "MiB");
  }
  COMPACT_CHECK(o.chart.empty() || o.pareto, "--chart takes no effect without --pareto");
  COMPACT_CHECK(o.chart.empty() || o.chart.ends_with(".html"), "--chart ", o.chart,
                ": a page's name ends in .html");
  if (!o.pareto) check_budget(c);
  // As a run would: both decide what products take beside their operands.
  if (c.threads > 0) at::set_num_threads(static_cast<int>(c.threads));
  if (!cuda) set_matmul_precision(c.matmul_precision, at::kCPU);
  set_deterministic(c.deterministic, device);

  const Task task = task_named(c.task).open(c, {}, warnings);
  Policy policy = c.preset == "auto" ? Policy() : make_policy(c, warnings);
  say_unused_bits(c, policy, warnings);
  Plans plans(c, task, device, o.world_size, o.stated);
  Reported to{out, {}};
  to.json["model"] = c.model.empty() ? c.model_name_or_path : c.model;
  to.json["preset"] = c.preset;
  to.json["device"] = cuda ? "cuda" : "cpu";
  if (o.max_batch) {
    const LargestBatch found = plans.largest_batch(policy);
    out << found.text;
    to.json["max_batch"] = c.per_device_train_batch_size = found.batch;
    plans = plans.with(c);
  }
  const StepPlan plan = plan_of(plans, policy, to);
  plans = plans.at(plan.rank);
  to.json["policy"] = policy.str();
  to.json.update(plan_json(plan, device));
  report_model(plans, plan, to);
  if (o.world_size > 1) report_ranks(plans, plan, to);
  if (cuda) {
    report_gpu(plans, policy, plan, gpu, to);
  } else {
    const MemoryLimit here = memory_limit(0);
    const bool fits = plan.reserved <= here.bytes;
    out << "machine  " << (fits ? "fits" : "does not fit") << ": " << format_bytes(here.bytes)
        << " of " << here.source << "\n";
    to.json["fits_this_machine"] = fits;
  }
  for (const std::string& w : warnings) out << "warning: " << w << "\n";
  if (o.pareto) {
    const PlanCurve curve = plan_curve(plans);
    out << "\n" << curve.text;
    to.json["pareto"] = curve.json;
    if (!o.chart.empty()) write_curve_page(curve, o.chart);
  }
  if (!o.json.empty()) write_json(o.json, to.json);
  const auto check = [&](int64_t bytes, const std::string& what) {
    plans.check_fits(policy, plan, {bytes, cat(what, ", under preset ", c.preset)},
                     /*resumed=*/false);
  };
  if (!c.budget.empty()) check(plans.budget(), "--budget");
  if (!o.gpu.empty()) check(planned_card().memory_bytes(), cat("--gpu ", o.gpu));
}

}  // namespace compact
