// SPDX-License-Identifier: Apache-2.0
#include "compact/config/option_groups_impl.h"

namespace compact {

OptionGroup options_of_output() {
  using enum ResumeRule;
  using enum Commands::Bit;
  return {"Output",
          {
              {OPTION(output_dir, "folder of the run"), .values = "DIR", .resume = kFree,
               .commands = kTrain | kCompare | kVisualize,
               .elsewhere = {{kVisualize, "where the pictures and index.html go"}}},
              {OPTION(overwrite_output_dir, "replace a run that is there"), .resume = kFree,
               .commands = kTrain | kCompare},
              {OPTION(verbose,
                      "print output_dir/memory.txt (every kind of saved tensor, a step's "
                      "memory) on the console, too"),
               .resume = kFree},
              {OPTION(logging_steps, "steps between lines"), .range = ValueRange::at_least(1),
               .resume = kFree, .commands = kRun},
              {OPTION(eval_steps, "steps between evaluations; 0: at the end only"),
               .range = ValueRange::at_least(0), .resume = kFree, .commands = kRun,
               .beside = {"eval_epochs", {"0"}}},
              {OPTION(eval_epochs,
                      "epochs between evaluations, in place of eval_steps; 0: by eval_steps"),
               .values = "X", .range = ValueRange::from(0, kMostEpochs), .resume = kFree},
              {OPTION(load_best_model_at_end,
                      "the final model is that of the best evaluation, kept in output_dir/best"),
               .resume = kFree},
              {OPTION(metric_for_best_model,
                      "the metric that the best model is chosen by; default: the task's first, "
                      "else the loss"),
               .values = "loss, accuracy, matthews_correlation, ...", .resume = kFree,
               .beside = {"load_best_model_at_end", {"true"}}},
              {OPTION(save_steps, "steps between checkpoints; 0: only when interrupted"),
               .range = ValueRange::at_least(0), .resume = kFree, .commands = kRun},
              {OPTION(save_total_limit, "newest checkpoints kept; 0: all"),
               .range = ValueRange::at_least(0), .resume = kFree, .commands = kRun},
              {OPTION(measure_steps,
                      "only measure the first so many steps: no evaluation, no checkpoint, no "
                      "model at the end; 0: train"),
               .range = ValueRange::at_least(0), .resume = kFree, .commands = kTrain},
              {OPTION(resume_from_checkpoint,
                      "go on from a checkpoint folder, or `latest` of output_dir"),
               .values = "DIR, latest", .resume = kFree, .commands = kTrain},
          }};
}

}  // namespace compact
