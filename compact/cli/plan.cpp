// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/plan.h"

#include <iostream>

#include "compact/cli/commands.h"
#include "compact/cli/planning_line.h"
#include "compact/cli/train_flags.h"
#include "compact/config/exit_codes.h"

namespace compact::cli {

int run_plan(const Command& command, const std::vector<std::string>& arguments) {
  Flags flags("compact plan", command.summary);
  PlanOptions o;
  double tflops = 0, gbps = 0;
  flags.group("Plan");
  flags.add_output("json", o.json, "write the figures here, too");
  flags.add("pareto", o.pareto, "predicted step time against peak, lossless and lossy");
  flags.add_output("chart", o.chart, "with --pareto: draw the curve into a page", "FILE.html");
  flags.add("max_batch", o.max_batch, "the largest micro-batch that fits --budget");
  flags.add("gpu", o.gpu,
            "with --device cuda: the GPU to plan for; default: the one here, else an H100",
            "see `compact list gpus`");
  flags.add("world_size", o.world_size,
            "processes of the run: the plan is that of the one that takes the most", "N");
  flags.add("device_tflops", tflops, "products that it reaches, in TFLOP/s; 0: from its data sheet",
            "X");
  flags.add("device_gbps", gbps,
            "memory bandwidth that it reaches, in GB/s; 0: from its data sheet", "X");
  o.config.tokenizer.clear();  // not named: the vocabulary of the model
  TrainFlags settings(flags, Commands::kPlan, o.config);
  if (!flags.parse(arguments)) return kExitOk;
  o.config = settings.config(flags);
  if (settings.print_config()) {
    std::cout << config_toml(o.config);
    return kExitOk;
  }
  o.stated = {.products = tflops * 1e12, .bytes = gbps * 1e9};
  const PlanningLine says(o.config);
  print_plan(o, std::cout);
  return kExitOk;
}

}  // namespace compact::cli
