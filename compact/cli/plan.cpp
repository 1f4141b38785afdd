// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/cli/commands.h"
#include "compact/cli/train_flags.h"
#include "compact/data/tokenizer.h"
#include "compact/io/hf_config.h"
#include "compact/io/json_file.h"
#include "compact/models/models.h"
#include "compact/train/exit_codes.h"
#include "compact/train/plan_curve.h"
#include "compact/train/plan_report.h"
#include "compact/train/planning.h"
#include "compact/train/precision.h"
#include "compact/train/setup.h"

namespace compact::cli {
namespace {

// The model's shape; with a tokenizer that was named, its vocabulary, as in training.
LlamaConfig shape_of(const TrainConfig& c) {
  if (!c.tokenizer.empty()) return model_config(c, *make_tokenizer(c.tokenizer));
  if (!c.model.empty()) return model_named(c.model).config;
  const LlamaConfig shape = read_llama_config(c.model_name_or_path);
  COMPACT_CHECK(c.block_size <= shape.max_position_embeddings, "--block_size ", c.block_size,
                " is longer than the model's max_position_embeddings ",
                shape.max_position_embeddings);
  return shape;
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
  flags.add("device_tflops", tflops, "speed of products of a device that is not here", "X");
  flags.add("device_gbps", gbps, "bytes that it reads and writes a second, in 10^9", "X");
  TrainConfig defaults;
  defaults.tokenizer.clear();  // not named: the vocabulary of the model
  TrainFlags settings(flags,
                      {"train_file", "validation_file", "validation_split", "text_field",
                       "max_eval_samples", "per_device_eval_batch_size", "max_steps",
                       "num_train_epochs", "output_dir", "overwrite_output_dir", "logging_steps",
                       "eval_steps", "save_steps", "save_total_limit", "resume_from_checkpoint"},
                      defaults);
  if (!flags.parse(arguments)) {
    std::cout << flags.help();
    return kExitOk;
  }
  TrainConfig c = settings.config(flags);
  if (settings.print_config()) {
    std::cout << config_toml(c);
    return kExitOk;
  }
  c.train_file = {"(none)"};
  c.output_dir = "(none)";
  check_config(c);
  const bool cuda = c.device == "cuda" || (c.device == "auto" && at::globalContext().hasCUDA());
  const c10::DeviceType device = cuda ? c10::kCUDA : c10::kCPU;
  COMPACT_CHECK(page.empty() || pareto, "--chart takes no effect without --pareto");
  const LlamaConfig shape = shape_of(c);
  // As a run would: both decide what products take beside their operands.
  if (c.threads > 0) at::set_num_threads(static_cast<int>(c.threads));
  if (!cuda) set_matmul_precision(c.matmul_precision, at::kCPU);
  stated = {.products = tflops * 1e12, .bytes = gbps * 1e9};

  std::vector<std::string> warnings;
  const bool automatic = c.preset == "auto";
  PlanRequest request =
      plan_request(c, shape, automatic ? Policy() : make_policy(c, warnings), device);
  nlohmann::ordered_json result;
  result["model"] = c.model.empty() ? c.model_name_or_path : c.model;
  result["preset"] = c.preset;
  result["device"] = cuda ? "cuda" : "cpu";
  if (max_batch) {
    const MaxBatch found = largest_batch(c, request, stated);
    request.step.batch = c.per_device_train_batch_size = found.batch;
    std::cout << found.text;
    result["max_batch"] = found.batch;
  }
  StepPlan plan;
  if (automatic) {
    const Chosen chosen = choose(c, shape, device, stated);
    std::cout << choice_text(chosen, request);
    request.policy = chosen.policy;
    plan = chosen.plan;
    result["lossless"] = chosen.lossless;
    result["added_flops"] = chosen.added_products;
    result["step_seconds"] = chosen.seconds;
    result["added_seconds"] = chosen.added_seconds;
    result["gradient_error"] = chosen.error;
  } else {
    plan = plan_step(request);
  }
  result["policy"] = request.policy.str();
  result.update(plan_json(plan, device));
  std::cout << "model    " << result["model"].get<std::string>() << ", "
            << format_count(plan.parameters) << " parameters, vocabulary "
            << format_count(shape.vocab_size) << ", " << c.dtype << " on "
            << (cuda ? "cuda" : "cpu") << ", " << request.step.batch << " x " << request.step.length
            << " tokens";
  if (request.step.accumulation > 1) std::cout << " x " << request.step.accumulation;
  std::cout << ", " << c.optim << ", preset " << c.preset << "\n" << plan_table(plan, device);
  for (const std::string& w : warnings) std::cout << "warning: " << w << "\n";
  if (pareto) {
    const PlanCurve curve = plan_curve(c, shape, device, stated);
    std::cout << "\n" << curve.text;
    result["pareto"] = curve.json;
    if (!page.empty()) write_curve_page(curve, page);
  }
  if (!json.empty()) write_json(json, result);
  const int64_t peak = cuda ? plan.reserved : plan.memory.peak;
  const int64_t budget = parse_bytes(c.budget).value_or(peak);
  if (peak > budget) {
    throw BudgetError(cat("--budget ", c.budget, " (", format_count(budget),
                          " B) cannot be met with preset ", c.preset, ": the peak is ",
                          format_bytes(peak), "; --preset auto looks for a policy that fits"),
                      peak);
  }
  return kExitOk;
}

}  // namespace compact::cli
