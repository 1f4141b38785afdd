// SPDX-License-Identifier: Apache-2.0
// The work of a run before its first step.
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <csignal>

#include "compact/base/check.h"
#include "compact/base/named.h"
#include "compact/config/exit_codes.h"
#include "compact/config/memory_limit.h"
#include "compact/config/option.h"
#include "compact/config/precision.h"
#include "compact/data/text/prepare.h"
#include "compact/kernels/gpu.h"
#include "compact/ops/memory/memory.h"
#include "compact/plan/search.h"
#include "compact/report/memory_table.h"
#include "compact/tasks/config_check.h"
#include "compact/tasks/references.h"
#include "compact/tasks/setup.h"
#include "compact/train/description.h"
#include "compact/train/kept_files.h"
#include "compact/train/output_folder.h"
#include "compact/train/ranks.h"
#include "compact/train/run_impl.h"
#include "compact/train/signals.h"

namespace compact {
namespace {

std::string gpu_name(at::Device device) {
  if (!device.is_cuda()) return {};
  const auto gpu = kernels::find_gpu(device.has_index() ? device.index() : 0);
  return gpu ? gpu->name : std::string();
}

// cuBLAS's workspaces of both threads that make products. That of autograd's, taken by the first
// product of a backward pass, would split a block that every later step needs as a whole. Returns
// their bytes.
int64_t make_workspaces(at::Device device) {
  if (!device.is_cuda()) return 0;
  const int64_t before = live_bytes(device);
  {
    const at::Tensor x = at::ones({8, 8}, device).requires_grad_();
    torch::autograd::backward({at::mm(x, x).sum()}, {});
  }
  return live_bytes(device) - before;
}

}  // namespace

void Run::prepare() {
  const std::string checkpoint = begin();
  restore_machine(checkpoint);
  if (checkpoint.empty() && !task_named(c_.task).planned_from_data) plan_without_data();
  open_data();
  restore(checkpoint);
  if (!plan_) make_plan(/*resumed=*/!checkpoint.empty());
  make_model(checkpoint);
  take_over_base(s_, *model_, checkpoint);
  if (!checkpoint.empty()) resume(checkpoint);
  check_same(group_, "machine or path of products",
             cat(s_.machine, ", ", s_.matmul_path, ", ", gpu_name(device_)));
  check_same_tensors(group_, *model_, *optimizer_);
  shard_weights(*model_, *optimizer_);
  static_bytes_ = live_bytes(device_) - outside_bytes_ - workspace_bytes_;
  if (!group_.leads()) return;
  output_.emplace(c_, task_, policy_, checkpoint.empty() ? -1 : s_.step, last(), console_);
}

std::string Run::begin() {
  if (c_.threads > 0) at::set_num_threads(static_cast<int>(c_.threads));
  install_counting_allocator();
  warnings_ = ignored_options(c_);
  for (const char* name : {"zero", "reduce_dtype", "ddp_timeout"}) {
    const ConfigOption& option = named(config_options(), name, "option");
    if (group_.size() > 1 || !is_given(c_, option)) continue;
    warnings_.push_back(
        cat("--", name, " ", option_text(c_, option), " takes no effect in one process"));
  }
  check_same_options(group_, c_);
  device_ = rank_device(group_, device_of(c_.device, warnings_));
  COMPACT_CHECK(!c_.cuda_graph || device_.is_cuda(),
                "--cuda_graph needs an NVIDIA GPU; this run is on ", device_.str());
  set_deterministic(c_.deterministic, device_.type());
  if (group_.leads()) folder_ = take_output_folder(c_, warnings_);
  std::string checkpoint;
  if (!c_.resume_from_checkpoint.empty()) {
    checkpoint = group_.broadcast(group_.leads() ? find_checkpoint(c_, warnings_) : std::string());
    policy_ = resumed_policy(checkpoint, c_, warnings_);
  } else if (c_.preset != "auto") {
    policy_ = make_policy(c_, warnings_);
  }
  say_unused_bits(c_, policy_, warnings_);
  return checkpoint;
}

// Refuses what cannot fit before all text is tokenized. The plan holds for the task that is opened
// with its data, whose model and samples are the same.
void Run::plan_without_data() {
  for (const auto* inputs : {&c_.train_file, &c_.validation_file}) {
    if (!inputs->empty()) check_inputs(*inputs);
  }
  std::vector<std::string> unsaid;  // open_data() says them
  task_ = task_named(c_.task).open(without_data(c_), {}, unsaid);
  make_plan(/*resumed=*/false);
}

void Run::open_data() {
  Clock::time_point shown = Clock::now();
  in_turn(group_, [&] {  // the first one tokenizes for all
    task_ = task_named(c_.task).open(
        c_,
        {.progress =
             [&](int64_t done, int64_t total) {
               if (std::chrono::duration<double>(Clock::now() - shown).count() > 0.2)
                 console_.bar(done, total, "bytes tokenized"), shown = Clock::now();
             }},
        warnings_);
  });
  if (c_.model.empty()) {
    const bool own_tokenizer = reads_with_own_tokenizer(c_);
    task_.files.merge(kept_files(c_.model_name_or_path, task_.files, own_tokenizer, warnings_));
    // Its ids are of the folder's tokenizer.
    if (!own_tokenizer) task_.files.erase("generation_config.json");
  }
  check_same(group_, "training data", cat(task_.checksum));
  check_same(group_, "model", task_.config.dump());
  if (!task_.validation && (c_.eval_steps > 0 || c_.eval_epochs > 0)) {
    warnings_.push_back(cat("--eval_", c_.eval_epochs > 0 ? "epochs" : "steps",
                            " takes no effect: there is nothing to evaluate on"));
  }
  if (task_.lengths_vary) bound_primitive_caches();
  total_steps_ = total_steps(c_, group_.size(), task_.train->size());
  evaluation_.emplace(c_, task_, console_, group_);
  schedule_ = std::make_unique<Schedule>(c_.lr_scheduler_type, total_steps_, c_.warmup_steps,
                                         c_.min_lr_ratio);
}

// Restores the settings that decide how products are made, and how much memory they take.
void Run::restore_machine(const std::string& checkpoint) {
  if (!checkpoint.empty()) s_ = read_run_state(checkpoint);
  if (std::string line = take_over_machine(s_, device_); !line.empty()) warnings_.push_back(line);
  s_.matmul_path = set_matmul_precision(c_.matmul_precision, device_, s_.matmul_path).path;
  products_ = products_text(c_, device_, s_.matmul_path);  // before memory is limited
}

// The step of a checkpoint, and what differs here.
void Run::restore(const std::string& checkpoint) {
  if (!checkpoint.empty()) check_same_run(checkpoint, c_, group_.size(), policy_, task_, warnings_);
  if (!checkpoint.empty() && s_.ranks != group_.size() && !c_.deterministic_reduce &&
      group_.size() * c_.gradient_accumulation_steps > 2) {
    warnings_.push_back(cat("the run goes on with ", group_.size(), " ranks, after ", s_.ranks,
                            ": more than two micro-batches are summed in another order"));
  }
  s_.ranks = group_.size();
  if (std::string line = evaluation_->take_over(s_); !line.empty()) warnings_.push_back(line);
}

// A policy that is chosen is what rank 0 chose: speeds are measured.
void Run::make_plan(bool resumed) {
  using enum RunPlan::Origin;
  const Place& place = hooks_.place;
  group_.lead([&] {
    const std::shared_ptr<void> shown = hooks_.planning ? hooks_.planning() : nullptr;
    plan_.emplace(c_, task_, device_, policy_, resumed ? kResumed : kNew, place);
  });
  const std::string policy = group_.broadcast(policy_.str());
  if (group_.leads()) return;
  policy_ = Policy::parse(policy, "the policy of rank 0");
  policy_.make_general();  // rank 0 has checked it
  plan_.emplace(c_, task_, device_, policy_, kOfRank0, place);
}

void Run::make_model(const std::string& checkpoint) {
  if (!task_.pairs.empty()) rewards_.emplace(device_);
  outside_bytes_ = live_bytes(device_);
  plan_->enforce(outside_bytes_);
  if (c_.cuda_graph || hooks_.replayed_steps) graph_.emplace(device_);  // before what it runs
  workspace_bytes_ = make_workspaces(device_);
  score_pairs_by_folder(checkpoint);
  model_ = make_network(c_, task_, policy_, device_, warnings_);
  if (c_.reference == "start") score_pairs(*model_, checkpoint);
  free_cached(device_);  // plans say what steps reserve
  optimizer_ =
      std::make_unique<Optimizer>(model_->trained(), optimizer_options(c_, policy_, shared_));
  if (graph_) StepGraph::check(c_, group_.size(), task_, policy_, *optimizer_);
  progress_.emplace(*model_, *optimizer_, device_.is_cuda() || hooks_.late_results, group_, s_,
                    figures_);
  bits_.emplace(c_, policy_);
}

// By the folder --reference, whose model is gone when the one that is trained is made.
void Run::score_pairs_by_folder(const std::string& checkpoint) {
  try {
    if (const auto reference = reference_model(c_, task_, device_, warnings_))
      score_pairs(*reference, checkpoint);
  } catch (const std::exception& e) {
    const std::optional<std::string> what = out_of_memory(e);
    if (!what) throw;
    throw BudgetError(
        cat("--reference ", c_.reference, " does not fit while it scores pairs: ", *what,
            "; a smaller --per_device_train_batch_size scores fewer at a time"),
        0);
  }
}

// Training and evaluations compare with what `reference` says of the task's pairs.
void Run::score_pairs(const Network& reference, const std::string& checkpoint) {
  if (task_.pairs.empty()) return;
  take_over_reference(s_, reference, checkpoint);
  const Clock::time_point started = Clock::now();
  // The step behind those that are measured is looked at, too.
  const int64_t steps = measures() ? std::min(c_.measure_steps + 1, total_steps_) : total_steps_;
  const int64_t pairs = set_references(
      c_, task_, reference, steps * samples_of_step(c_, group_.size()),
      [&](int64_t done, int64_t total) {
        console_.bar(done, total, "pairs scored by the reference");
        if (SignalScope::count() == 0) return;
        throw StoppedEarly{SignalScope::signal() == SIGINT ? kExitInterrupt : kExitTerminate,
                           cat("stopped while the reference scored pairs (", format_count(done),
                               " of ", format_count(total), "): nothing is kept")};
      },
      group_);
  const std::chrono::duration<double> took = Clock::now() - started;
  const bool start = c_.reference == "start";
  console_.line(cat("scored   ", format_count(pairs), " pairs by ",
                    start ? "the model that training starts from" : c_.reference,
                    formatted(" in %.1f s", took.count()), "; loss ", c_.loss_type, ", beta ",
                    c_.beta));
}

void Run::resume(const std::string& checkpoint) {
  load_run(checkpoint, *model_, *optimizer_);
  bits_->restore(*model_, s_.bits);
  if (!s_.bits.empty()) plan_->take(s_.bits, /*first=*/true);
  task_.train->seek(s_.window);
  if (group_.leads() && rewards_) rewards_->reset(s_.rewards);
  seconds_before_ = s_.seconds;
  saved_step_ = s_.step;
  saved_ = checkpoint;
  console_.line(cat("resumed from ", checkpoint, " at step ", s_.step,
                    s_.micro ? cat(", micro-batch ", s_.micro) : ""));
}

void Run::describe() {
  for (const std::string& line :
       description({c_, group_.size(), task_, *model_, total_steps_, products_, static_bytes_,
                    plan_->weights_elsewhere(), plan_->state_elsewhere()})) {
    console_.line(line);
  }
  console_.line(saved_line(plan_->slots()));
  for (const std::string& line : plan_->lines()) console_.line(line);
  console_.line(cat("tables   ", c_.output_dir, "/memory.txt; the policy in policy.txt"));
  for (const std::string& w : warnings_) console_.line("warning: " + w);
  if (output_) output_->write_memory(plan_->table());
}

}  // namespace compact
