// SPDX-License-Identifier: Apache-2.0
#include "compact/config/option_groups_impl.h"

#include "compact/optim/optimizers.h"
#include "compact/optim/schedules.h"

namespace compact {
namespace {

// Larger counts would overflow int64, or run out of memory before a clear error.
constexpr double kMostSamples = 1 << 30, kMostMicroBatches = 1 << 16;

}  // namespace

OptionGroup options_of_length() {
  using C = TrainConfig;
  using enum ResumeRule;
  using enum Commands::Bit;
  return {"Batch and length",
          {
              {.name = "per_device_train_batch_size",
               .member = &C::per_device_train_batch_size,
               .help = "sequences, images or graphs in a micro-batch",
               .range = ValueRange::from(1, kMostSamples),
               .resume = kKept},
              {.name = "per_device_eval_batch_size",
               .member = &C::per_device_eval_batch_size,
               .help = "the same in evaluation",
               .range = ValueRange::at_least(1),
               .resume = kFree,
               .commands = kRun | kEval,
               .elsewhere = {{kEval, "sequences, images or graphs in a batch"}}},
              {.name = "gradient_accumulation_steps",
               .member = &C::gradient_accumulation_steps,
               .help = "micro-batches in a step",
               .range = ValueRange::from(1, kMostMicroBatches),
               .resume = kKept},
              {.name = "max_steps",
               .member = &C::max_steps,
               .help = "optimizer steps; -1: by epochs",
               .range = ValueRange::positive(),
               .resume = kWarned,
               .commands = kRun},
              {.name = "num_train_epochs",
               .member = &C::num_train_epochs,
               .help = "epochs, without max_steps",
               .values = "X",
               .range = ValueRange::from(0, kMostEpochs),
               .resume = kWarned,
               .commands = kRun,
               .beside = {"max_steps", {"-1"}}},
          }};
}

namespace {

// The optimizers, with Trainer's names for PyTorch's as synonyms.
std::vector<Choice> choices_of_optimizers() {
  std::vector<Choice> all = choices_of(optimizers());
  for (Choice& c : all) {
    if (c.name == "adamw") c.also = {"adamw_torch", "adamw_torch_fused"};
  }
  return all;
}

}  // namespace

OptionGroup options_of_optimizer() {
  using C = TrainConfig;
  using enum ResumeRule;
  using enum Commands::Bit;
  return {
      "Optimizer",
      {
          {.name = "optim",
           .member = &C::optim,
           .help = "muon: for the matrices of blocks, AdamW for the rest",
           .choices = choices_of_optimizers(),
           .resume = kKept},
          {.name = "learning_rate",
           .member = &C::learning_rate,
           .help = "peak learning rate; -1: 1e-3, or 5e-5 to tune a model with weights, but by sgd",
           .range = ValueRange::at_least(0),
           .resume = kKept},
          {.name = "projected_learning_rate",
           .member = &C::projected_learning_rate,
           .help = "peak learning rate of the matrices of blocks; 0: learning_rate",
           .range = ValueRange::at_least(0),
           .resume = kKept},
          {.name = "lr_scheduler_type",
           .member = &C::lr_scheduler_type,
           .help = "shape after warm-up",
           .choices = choices_of(schedules()),
           .resume = kKept},
          {.name = "warmup_steps",
           .member = &C::warmup_steps,
           .help = "steps of warm-up; below 1: a part of all steps; -1: none, or 0.1 to tune a "
                   "model with weights if learning_rate is not given",
           .values = "N or ratio",
           .range = ValueRange::at_least(0),
           .resume = kKept},
          {.name = "min_lr_ratio",
           .member = &C::min_lr_ratio,
           .help = "last learning rate as a part of the peak",
           .range = ValueRange::from(0, 1),
           .resume = kKept,
           .beside = {"lr_scheduler_type", {"cosine", "linear", "wsd", "step"}}},
          {.name = "weight_decay",
           .member = &C::weight_decay,
           .help = "weight decay of matrices; `compact list optimizers` says where not decoupled",
           .range = ValueRange::at_least(0),
           .resume = kKept},
          {.name = "momentum",
           .member = &C::momentum,
           .help = "of sgd",
           .range = ValueRange::part(),
           .resume = kKept,
           .beside = {"optim", {"sgd"}}},
          {.name = "label_smoothing_factor",
           .member = &C::label_smoothing_factor,
           .help = "classification: part of a target that is spread over all classes",
           .range = ValueRange::part(),
           .resume = kKept,
           .tasks = {"image-classification", "node-classification", "graph-classification",
                     "text-classification", "glue"}},
          {.name = "adam_beta1",
           .member = &C::adam_beta1,
           .help = "decay of the first moment",
           .range = ValueRange::part(),
           .resume = kKept,
           .beside = {"optim", {"adamw", "muon", "adam"}}},
          {.name = "adam_beta2",
           .member = &C::adam_beta2,
           .help = "decay of the second moment",
           .range = ValueRange::part(),
           .resume = kKept,
           .beside = {"optim", {"adamw", "muon", "adam"}}},
          {.name = "adam_epsilon",
           .member = &C::adam_epsilon,
           .help = "added to the root of the second moment",
           .range = ValueRange::positive(),
           .resume = kKept,
           .beside = {"optim", {"adamw", "muon", "adam"}}},
          {.name = "max_grad_norm",
           .member = &C::max_grad_norm,
           .help = "gradients are clipped to this norm; 0: not",
           .range = ValueRange::at_least(0),
           .resume = kKept},
      }};
}

}  // namespace compact
