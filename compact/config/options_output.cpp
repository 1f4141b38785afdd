// SPDX-License-Identifier: Apache-2.0
#include "compact/config/option_groups_impl.h"

namespace compact {

OptionGroup options_of_output() {
  using C = TrainConfig;
  using enum ResumeRule;
  using enum Commands::Bit;
  return {"Output",
          {
              {.name = "output_dir",
               .member = &C::output_dir,
               .help = "folder of the run",
               .values = "DIR",
               .resume = kFree,
               .commands = kTrain | kCompare | kVisualize,
               .elsewhere = {{kVisualize, "where the pictures and index.html go"}}},
              {.name = "overwrite_output_dir",
               .member = &C::overwrite_output_dir,
               .help = "replace a run that is there",
               .resume = kFree,
               .commands = kTrain | kCompare},
              {.name = "verbose",
               .member = &C::verbose,
               .help = "what stands in output_dir/memory.txt (every kind of saved tensor, a step's "
                       "memory) on the console, too",
               .resume = kFree},
              {.name = "logging_steps",
               .member = &C::logging_steps,
               .help = "steps between lines",
               .range = ValueRange::at_least(1),
               .resume = kFree,
               .commands = kRun},
              {.name = "eval_steps",
               .member = &C::eval_steps,
               .help = "steps between evaluations; 0: at the end only",
               .range = ValueRange::at_least(0),
               .resume = kFree,
               .commands = kRun},
              {.name = "eval_epochs",
               .member = &C::eval_epochs,
               .help = "epochs between evaluations, in place of eval_steps; 0: by eval_steps",
               .values = "X",
               .range = ValueRange::from(0, kMostEpochs),
               .resume = kFree},
              {.name = "load_best_model_at_end",
               .member = &C::load_best_model_at_end,
               .help = "the final model is that of the best evaluation, kept in output_dir/best",
               .resume = kFree},
              {.name = "metric_for_best_model",
               .member = &C::metric_for_best_model,
               .help = "by which one is best; default: the task's first metric, else the loss",
               .values = "loss, accuracy, matthews_correlation, ...",
               .resume = kFree},
              {.name = "save_steps",
               .member = &C::save_steps,
               .help = "steps between checkpoints; 0: only when interrupted",
               .range = ValueRange::at_least(0),
               .resume = kFree,
               .commands = kRun},
              {.name = "save_total_limit",
               .member = &C::save_total_limit,
               .help = "newest checkpoints kept; 0: all",
               .range = ValueRange::at_least(0),
               .resume = kFree,
               .commands = kRun},
              {.name = "measure_steps",
               .member = &C::measure_steps,
               .help = "only measure the first so many steps: no evaluation, no checkpoint, no "
                       "model at the end; 0: train",
               .range = ValueRange::at_least(0),
               .resume = kFree,
               .commands = kTrain},
              {.name = "resume_from_checkpoint",
               .member = &C::resume_from_checkpoint,
               .help = "go on from a checkpoint folder, or `latest` of output_dir",
               .values = "DIR, latest",
               .resume = kFree,
               .commands = kTrain},
          }};
}

}  // namespace compact
