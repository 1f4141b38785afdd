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
  using enum ResumeRule;
  using enum Commands::Bit;
  return {"Batch and length",
          {
              {OPTION(per_device_train_batch_size, "sequences, images or graphs in a micro-batch"),
               .range = ValueRange::from(1, kMostSamples), .resume = kKept},
              {OPTION(per_device_eval_batch_size, "the same in evaluation"),
               .range = ValueRange::at_least(1), .resume = kFree, .commands = kRun | kEval,
               .elsewhere = {{kEval, "sequences, images or graphs in a batch"}}},
              {OPTION(gradient_accumulation_steps, "micro-batches in a step"),
               .range = ValueRange::from(1, kMostMicroBatches), .resume = kKept},
              {OPTION(max_steps, "optimizer steps; -1: by epochs"), .range = ValueRange::positive(),
               .resume = kWarned, .commands = kRun},
              {OPTION(num_train_epochs, "epochs, without max_steps"), .values = "X",
               .range = ValueRange::from(0, kMostEpochs), .resume = kWarned, .commands = kRun,
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
  using enum ResumeRule;
  using enum Commands::Bit;
  return {
      "Optimizer",
      {
          {OPTION(optim, "muon: for the matrices of blocks, AdamW for the rest"),
           .choices = choices_of_optimizers(), .resume = kKept},
          {OPTION(
               learning_rate,
               "peak learning rate; -1: to tune a model with weights 5e-5, or 1e-4 with use_peft; "
               "else, and for sgd, 1e-3"),
           .range = ValueRange::at_least(0), .resume = kKept},
          {OPTION(projected_learning_rate,
                  "peak learning rate of the matrices of blocks; 0: learning_rate"),
           .range = ValueRange::at_least(0), .resume = kKept},
          {OPTION(lr_scheduler_type, "shape after warm-up"), .choices = choices_of(schedules()),
           .resume = kKept},
          {OPTION(warmup_steps,
                  "steps of warm-up; below 1: a part of all steps; -1: none, or 0.1 to tune a "
                  "model with weights if learning_rate is not given"),
           .values = "N or ratio", .range = ValueRange::at_least(0), .resume = kKept},
          {OPTION(min_lr_ratio, "last learning rate as a part of the peak"),
           .range = ValueRange::from(0, 1), .resume = kKept,
           .beside = {"lr_scheduler_type", {"cosine", "linear", "wsd", "step"}}},
          {OPTION(weight_decay,
                  "weight decay of matrices; `compact list optimizers` says where not decoupled"),
           .range = ValueRange::at_least(0), .resume = kKept},
          {OPTION(momentum, "of sgd"), .range = ValueRange::part(), .resume = kKept,
           .beside = {"optim", {"sgd"}}},
          {OPTION(label_smoothing_factor,
                  "classification: part of a target that is spread over all classes; preference: "
                  "part of the pairs that may be the wrong way round"),
           .range = ValueRange::part(), .resume = kKept,
           .tasks = {"image-classification", "node-classification", "graph-classification",
                     "text-classification", "glue", "preference"}},
          {OPTION(loss_type,
                  "of pairs: sigmoid is DPO; hinge is SLiC; ipo squares differences of means"),
           .choices = {Choice("sigmoid"), Choice("hinge"), Choice("ipo")}, .resume = kKept,
           .commands = kRunOrPlan | kEval, .tasks = {"preference"}},
          {OPTION(beta, "how strongly the model is held to the reference"),
           .range = ValueRange::positive(), .resume = kKept, .commands = kRunOrPlan | kEval,
           .tasks = {"preference"}},
          {OPTION(reference,
                  "the model that answers are compared with: start, the one that training starts "
                  "from (with adapters, without them); none; or a model's folder"),
           .values = "start, none, DIR", .resume = kKept, .commands = kRunOrPlan | kEval,
           .elsewhere = {{kEval, "preference: a model's folder, or none; default: the run's"}},
           .tasks = {"preference"}},
          {OPTION(adam_beta1, "decay of the first moment"), .range = ValueRange::part(),
           .resume = kKept, .beside = {"optim", {"adamw", "muon", "adam"}}},
          {OPTION(adam_beta2, "decay of the second moment"), .range = ValueRange::part(),
           .resume = kKept, .beside = {"optim", {"adamw", "muon", "adam"}}},
          {OPTION(adam_epsilon, "added to the root of the second moment"),
           .range = ValueRange::positive(), .resume = kKept,
           .beside = {"optim", {"adamw", "muon", "adam"}}},
          {OPTION(max_grad_norm, "gradients are clipped to this norm; 0: not"),
           .range = ValueRange::at_least(0), .resume = kKept},
      }};
}

}  // namespace compact
