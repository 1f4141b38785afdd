// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/cli/commands.h"
#include "compact/cli/train_flags.h"
#include "compact/config/exit_codes.h"
#include "compact/config/memory_limit.h"
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
#include "compact/train/planned_rank.h"
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

// Makes a card the one that plans are for; empty: it stays that of this machine. What it is.
std::string plan_for_gpu(const std::string& name) {
  if (!name.empty()) {
    kernels::set_planned_gpu(gpu_card(name).gpu());
    return std::string(planned_card().words);
  }
  const std::string& here = kernels::planned_gpu().name;
  if (!kernels::find_gpu(0)) return cat(planned_card().words, " (none was found here; see --gpu)");
  return find_gpu_card(here) ? here : cat(here, ", taken as ", planned_card().words);
}

// Time, memory, path of products and launches of a planned step on a GPU, on the console and in
// `result`.
void report_gpu(const TrainConfig& c, const std::vector<Operation>& operations,
                const StatedSpeed& stated, const StepPlan& plan, const std::string& gpu,
                nlohmann::ordered_json& result) {
  const GpuCard& card = planned_card();
  const GpuRates rates = gpu_rates(c, stated);
  const StepTime time = step_time(operations, rates);
  const bool fits = plan.reserved <= card.memory_bytes();
  std::cout << time_table(time, rates) << "gpu      " << gpu << ": a step "
            << (fits ? "takes " : "does not fit: it takes ") << format_bytes(plan.reserved)
            << " of " << format_bytes(card.memory_bytes())
            << " that the driver and a context leave of " << card.mebibytes << " MiB\n";
  if (dtype_of(c.dtype) == at::kFloat && card.tf32_tflops() > card.float_tflops) {
    TrainConfig other = c;
    other.matmul_precision = c.matmul_precision == "high" ? "highest" : "high";
    std::cout << "products " << float_products(card, c.matmul_precision)
              << formatted(", a step of %.4g ms\n",
                           1e3 * step_time(operations, gpu_rates(other, stated)).total().seconds);
  }
  const StepLaunches launches = launches_of(operations);
  std::cout << str(launches) << "\n";
  result["launches"] = launches_json(launches);
  result["gpu"] = {{"name", card.name}, {"memory_bytes", card.memory_bytes()}, {"step_fits", fits}};
  result["time"] = time_json(time, rates);
}

// The rank that is planned, and what a step sends.
void report_ranks(const TrainConfig& c, const StepPlan& plan, nlohmann::ordered_json& result) {
  std::cout << "ranks    " << c.ranks << ", zero " << c.zero << ": ";
  if (plan.dealt.empty()) {
    std::cout << "each has all optimizer state";
  } else {
    const auto bytes = [&](int64_t rank) { return plan.dealt[static_cast<size_t>(rank)]; };
    std::cout << "this is rank " << c.planned_rank << ", which takes the most; it has "
              << format_bytes(bytes(c.planned_rank)) << " of "
              << format_bytes(std::accumulate(plan.dealt.begin(), plan.dealt.end(), int64_t{0}))
              << " optimizer state";
  }
  std::cout << "; sums and copies of " << format_bytes(plan.sent)
            << " a step, of which times of a step say nothing\n";
  if (plan.whole > 0) {
    std::cout << "         with all weights, as at the start and in evaluations, "
              << format_bytes(plan.whole) << " beside what an evaluation takes\n";
    result["all_weights_bytes"] = plan.whole;
  }
  result["ranks"] = {{"world_size", c.ranks},
                     {"zero", c.zero},
                     {"rank", c.planned_rank},
                     {"state_bytes", plan.dealt},
                     {"sent_bytes_per_step", plan.sent}};
}

}  // namespace

int run_plan(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact plan", command.summary);
  std::string json, page, gpu;
  bool pareto = false, max_batch = false;
  StatedSpeed stated;
  int64_t ranks = 1;
  double tflops = stated.products * 1e-12, gbps = stated.bytes * 1e-9;
  flags.group("Plan");
  flags.add("json", json, "write the figures here, too", "FILE");
  flags.add("pareto", pareto, "predicted step time against peak, lossless and lossy");
  flags.add("chart", page, "with --pareto: draw the curve into a page", "FILE.html");
  flags.add("max_batch", max_batch, "the largest micro-batch that fits --budget");
  flags.add("gpu", gpu,
            "with --device cuda: the GPU to plan for; default: the one here, else an H100",
            "see `compact list gpus`");
  flags.add("world_size", ranks,
            "processes of the run: the plan is that of the one that takes the most", "N");
  flags.add("device_tflops", tflops,
            "products that it reaches, in 10^12 a second; 0: as known of it", "X");
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
  COMPACT_CHECK(ranks >= 1 && ranks <= kMostRanks, "--world_size must be in [1, ", kMostRanks,
                "], is ", ranks);
  c = for_task(c);
  c.ranks = ranks;
  check_ranks(c);
  COMPACT_CHECK(ranks > 1 || c.zero == TrainConfig().zero, "--zero ", c.zero,
                " takes effect with --world_size above 1 only");
  COMPACT_CHECK(ranks > 1 || c.reduce_dtype == TrainConfig().reduce_dtype, "--reduce_dtype ",
                c.reduce_dtype, " takes effect with --world_size above 1 only");
  if (!task_named(c.task).planned_from_data) {
    // A run gives a new model the vocabulary that its text is read with.
    const bool read = !c.train_file.empty() && c.tokenizer.empty() && !c.model.empty();
    if (read) c.tokenizer = tokenizer_of(c, /*data=*/true)->spec();
    c.train_file.clear();
  }
  std::vector<std::string> warnings;
  const c10::DeviceType device = planned_device_of(c.device, warnings);
  const bool cuda = device == c10::kCUDA;
  COMPACT_CHECK(cuda || gpu.empty(), "--gpu ", gpu, " takes effect with --device cuda only");
  COMPACT_CHECK(cuda || (tflops == 0 && gbps == 0),
                "--device_tflops and --device_gbps take effect with --device cuda only");
  const std::string named = gpu;
  if (cuda) gpu = plan_for_gpu(gpu);
  // What a card has is the budget of what asks for one.
  if (!named.empty() && c.budget.empty() && (max_batch || c.preset == "auto")) {
    c.budget = cat(planned_card().memory_bytes() >> 20, "MiB");
  }
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
  if (!automatic) c.planned_rank = heaviest_rank(c, task, policy, device);
  StepPlan plan;
  if (automatic) {
    const Chosen chosen = choose_for_ranks(c, task, device, stated);
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
  if (ranks > 1) report_ranks(c, plan, result);
  if (cuda) {
    report_gpu(c, planned_operations(c, task, policy), stated, plan, gpu, result);
  }
  if (c.deterministic && cuda) {
    const int64_t more = plan.reserved - plan_of_any_order(c, task, policy, device).reserved;
    std::cout << "--deterministic takes " << format_bytes(more) << " of the reserved bytes\n";
    result["deterministic_bytes"] = more;
  }
  if (!cuda) {
    const MemoryLimit here = memory_limit(0);
    const bool fits = plan.reserved <= here.bytes;
    std::cout << "machine  " << (fits ? "fits" : "does not fit") << ": " << format_bytes(here.bytes)
              << " of " << here.source << "\n";
    result["fits_this_machine"] = fits;
  }
  for (const std::string& w : warnings) std::cout << "warning: " << w << "\n";
  if (pareto) {
    const PlanCurve curve = plan_curve(c, task, device, stated);
    std::cout << "\n" << curve.text;
    result["pareto"] = curve.json;
    if (!page.empty()) write_curve_page(curve, page);
  }
  if (!json.empty()) write_json(json, result);
  const auto check = [&](int64_t bytes, const std::string& what) {
    check_fits(c, task, policy, device, plan, {bytes, cat(what, ", under preset ", c.preset)},
               /*resumed=*/false);
  };
  if (!c.budget.empty()) check(budget_of(c), "--budget");
  if (cuda && !named.empty()) check(planned_card().memory_bytes(), cat("--gpu ", named));
  return kExitOk;
}

}  // namespace compact::cli
