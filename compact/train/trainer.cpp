// SPDX-License-Identifier: Apache-2.0
#include "compact/train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <ostream>

#include "compact/base/check.h"
#include "compact/config/exit_codes.h"
#include "compact/config/heap_trimmer.h"
#include "compact/config/memory_limit.h"
#include "compact/config/option.h"
#include "compact/config/precision.h"
#include "compact/ops/memory/memory.h"
#include "compact/ops/memory/memory_trace.h"
#include "compact/optim/schedules.h"
#include "compact/plan/train_step.h"
#include "compact/report/memory_table.h"
#include "compact/report/step_figures.h"
#include "compact/tasks/config_check.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/task.h"
#include "compact/train/bit_chooser.h"
#include "compact/train/description.h"
#include "compact/train/failures.h"
#include "compact/train/last_writes.h"
#include "compact/train/output_folder.h"
#include "compact/train/ranks.h"
#include "compact/train/results.h"
#include "compact/train/run_evaluation.h"
#include "compact/train/run_output.h"
#include "compact/train/run_plan.h"
#include "compact/train/run_progress.h"
#include "compact/train/run_state.h"
#include "compact/train/signals.h"
#include "compact/train/step_graph.h"

namespace compact {
namespace {

using Clock = std::chrono::steady_clock;
// Whether this process is to end, as a number whose sum over ranks tells how.
constexpr int64_t kTerminate = int64_t{1} << 32;
int64_t own_signal() {
  if (SignalScope::count() == 0) return 0;
  return SignalScope::signal() == SIGINT ? 1 : kTerminate;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Run {
 public:
  Run(const TrainConfig& config, Console& console, const TrainHooks& hooks, Group& group)
      : c_(config), console_(console), hooks_(hooks), group_(group) {}
  int go();
  void show_plan();  // after memory ran out

 private:
  void prepare();
  void make_plan(bool resumed);
  void resume(const std::string& checkpoint);
  void describe();
  void choose_bits();
  bool step();  // false: stopped inside the update, gradients pending
  void log();
  void save(const char* why);
  void finish();
  void conclude();
  bool last() const { return s_.step >= total_steps_; }

  const TrainConfig& c_;
  Console& console_;
  const TrainHooks& hooks_;
  Group& group_;
  std::unique_ptr<FolderLock> folder_;
  std::vector<std::string> warnings_;
  at::Device device_ = at::kCPU;
  Policy policy_;
  Task task_;
  std::unique_ptr<Network> model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Schedule> schedule_;
  std::optional<RunOutput> output_;
  RunState s_;
  int64_t total_steps_ = 0, saved_step_ = -1;
  std::string saved_;  // the checkpoint of that step
  // Of the latest update.
  double learning_rate_ = 0;
  int64_t peak_bytes_ = 0;
  // Of this process.
  Clock::time_point started_ = Clock::now();
  double seconds_before_ = 0;
  RunFigures figures_;
  PassReport report_;  // of the latest micro-batch
  HeapTrimmer heap_;
  int64_t static_bytes_ = 0;   // weights and optimizer state
  int64_t outside_bytes_ = 0;  // data sets
  std::optional<RunPlan> plan_;
  std::optional<BitChooser> bits_;
  std::optional<RunEvaluation> evaluation_;
  std::optional<RunProgress> progress_;
  std::optional<StepGraph> graph_;
};

void Run::prepare() {
  if (c_.threads > 0) at::set_num_threads(static_cast<int>(c_.threads));
  install_counting_allocator();
  warnings_ = ignored_options(c_);
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
  Clock::time_point shown = Clock::now();
  in_turn(group_, [&] {  // the first one tokenizes for all
    task_ = task_named(c_.task).open(
        c_,
        [&](int64_t done, int64_t total) {
          if (seconds_since(shown) > 0.2)
            console_.bar(done, total, "bytes tokenized"), shown = Clock::now();
        },
        warnings_);
  });
  check_same(group_, "training data", cat(task_.checksum));
  check_same(group_, "model", task_.config.dump());
  if (task_.lengths_vary) bound_primitive_caches();
  total_steps_ = total_steps(c_, task_.train->size());
  evaluation_.emplace(c_, task_, console_);
  schedule_ = std::make_unique<Schedule>(c_.lr_scheduler_type, total_steps_, c_.warmup_steps,
                                         c_.min_lr_ratio);
  if (!checkpoint.empty()) {
    s_ = read_run_state(checkpoint);
    check_same_run(checkpoint, c_, policy_, task_, warnings_);
  }
  if (std::string line = take_over_machine(s_, device_); !line.empty()) warnings_.push_back(line);
  if (!checkpoint.empty() && s_.ranks != c_.ranks &&
      c_.ranks * c_.gradient_accumulation_steps > 2) {
    warnings_.push_back(cat("the run goes on with ", c_.ranks, " ranks, after ", s_.ranks,
                            ": more than two micro-batches are summed in another order"));
  }
  s_.ranks = c_.ranks;
  s_.matmul_path = set_matmul_precision(c_.matmul_precision, device_, s_.matmul_path).path;
  if (std::string line = evaluation_->take_over(s_); !line.empty()) warnings_.push_back(line);
  make_plan(/*resumed=*/!checkpoint.empty());
  outside_bytes_ = live_bytes(device_);
  plan_->enforce(outside_bytes_);
  if (c_.cuda_graph || hooks_.replayed_steps) graph_.emplace(device_);  // before what it runs
  model_ = make_network(c_, task_, policy_, device_, warnings_);
  check_updates(group_, *model_);
  optimizer_ = make_optimizer(c_, policy_, *model_);
  if (graph_) StepGraph::check(c_, task_, policy_, *optimizer_);
  static_bytes_ = live_bytes(device_) - outside_bytes_;
  progress_.emplace(*model_, *optimizer_, device_.is_cuda() || hooks_.late_results, group_, s_,
                    figures_);
  bits_.emplace(c_, policy_);
  if (!checkpoint.empty()) resume(checkpoint);
  check_same(group_, "machine or path of products", cat(s_.machine, ", ", s_.matmul_path));
  check_same_tensors(group_, *model_, *optimizer_);
  if (!group_.leads()) return;
  output_.emplace(c_, task_, policy_, checkpoint.empty() ? -1 : s_.step, last(), console_);
}

// A policy that is chosen is what rank 0 chose: speeds are measured.
void Run::make_plan(bool resumed) {
  group_.lead([&] { plan_.emplace(c_, task_, device_, policy_, resumed); });
  const std::string policy = group_.broadcast(policy_.str());
  if (group_.leads()) return;
  policy_ = Policy::parse(policy, "the policy of rank 0");
  policy_.make_general();  // rank 0 has checked it
  plan_.emplace(c_, task_, device_, policy_, /*resumed=*/true);
}

void Run::resume(const std::string& checkpoint) {
  load_run(checkpoint, *model_, *optimizer_);
  bits_->restore(*model_, s_.bits);
  if (!s_.bits.empty()) plan_->take(s_.bits, /*first=*/true);
  task_.train->seek(s_.window);
  seconds_before_ = s_.seconds;
  saved_step_ = s_.step;
  saved_ = checkpoint;
  console_.line(cat("resumed from ", checkpoint, " at step ", s_.step,
                    s_.micro ? cat(", micro-batch ", s_.micro) : ""));
}

void Run::describe() {
  for (const std::string& line :
       description({c_, task_, *model_, total_steps_, s_.matmul_path, static_bytes_})) {
    console_.line(line);
  }
  console_.line(saved_line(plan_->slots()));
  for (const std::string& line : plan_->lines()) console_.line(line);
  console_.line(cat("tables   ", c_.output_dir, "/memory.txt; the policy in policy.txt"));
  for (const std::string& w : warnings_) console_.line("warning: " + w);
  if (output_) output_->write_memory(plan_->table());
}

// On the batch to come, which stays to come.
void Run::choose_bits() {
  progress_->settle();
  group_.lead([&] {
    const Batch batch = task_.train->peek(c_.per_device_train_batch_size);
    StepInputs inputs = inputs_of(batch, device_);
    inputs.noise = noise_key(c_, s_.step, -1);
    console_.line(bits_->choose(*model_, inputs, report_,
                                [&](const std::string& bits) { return plan_->fits(bits); }));
  });
  const std::string bits = group_.broadcast(bits_->bits());
  if (!group_.leads()) bits_->restore(*model_, bits);
  s_.bits = bits_->bits();
  plan_->take(s_.bits, figures_.step_seconds.empty());
  console_.line(plan_->line());
  if (output_) output_->write_bits(s_.bits);
}

bool Run::step() {
  progress_->begin();
  reset_peak(device_);
  if (figures_.step_seconds.size() == 1 && progress_->is_settled() && s_.micro == 0)
    plan_->begin_record(*model_, *optimizer_, outside_bytes_);
  trace_moment(Phase::kBatch);
  const int64_t accumulation = c_.gradient_accumulation_steps;
  // All micro-batches, so that their targets are counted; on resume those already in the gradients
  // are passed over.
  s_.window = task_.train->position();
  const BatchWindow window = next_window(task_, c_, group_);
  const int64_t valid = s_.valid = window.targets;
  int64_t live = 0;
  StepHooks hooks;
  hooks.before_forward = [&](int64_t) { live = live_bytes(device_); };
  hooks.before_backward = [&](const at::Tensor& loss) {
    figures_.held_bytes = live_bytes(device_) - live;
    figures_.saved_bytes = report_.all_saved_bytes();
    progress_->add_loss(loss);  // before it changes weights
  };
  hooks.after_backward = [&](int64_t micro, const at::Tensor&) {
    plan_->mark_gradients();
    s_.micro = micro + 1;
    const bool stop = SignalScope::count() >= 2 || (hooks_.stop && hooks_.stop(s_.step, micro));
    return !stop || group_.size() > 1 || s_.micro == accumulation;
  };
  const int64_t sent = group_.bytes();
  hooks.before_norm = [&] {
    figures_.sum_seconds += sum_gradients(group_, *optimizer_);
    figures_.sum_bytes += group_.bytes() - sent;
  };
  hooks.before_update = [&](const at::Tensor& norm) { progress_->add_norm(norm); };
  learning_rate_ = c_.learning_rate * schedule_->factor(s_.step);
  const StepSettings settings = {.accumulation = accumulation,
                                 .first = s_.micro,
                                 .loss_scale = valid > 0 ? 1.0 / static_cast<double>(valid) : 0.0,
                                 .learning_rate = learning_rate_,
                                 .max_grad_norm = c_.max_grad_norm,
                                 .report = &report_,
                                 .guard = progress_->guard()};
  const auto micro_batch = [&](int64_t micro) {
    StepInputs inputs = inputs_of(window.batches[static_cast<size_t>(micro)], device_);
    inputs.noise = noise_key(c_, s_.step, group_.rank() * accumulation + micro);
    return inputs;
  };
  if (graph_) optimizer_->prepare(learning_rate_);
  const bool replayed =
      graph_ && graph_->run(*model_, *optimizer_, settings, window.batches, *progress_);
  const bool whole = replayed || train_step(*model_, *optimizer_, settings, micro_batch, hooks);
  if (!whole) {
    progress_->stop_inside();
    return false;
  }
  ++s_.step;
  const std::string table = plan_->end_record(s_.step, report_, console_);
  if (output_ && !table.empty()) output_->write_memory(table);
  s_.micro = 0;
  s_.window = task_.train->position();
  s_.tokens += valid;
  progress_->end();
  // A replay asks for no memory.
  if (!replayed) peak_bytes_ = peak_bytes(device_) - outside_bytes_;
  if (device_.is_cpu()) heap_.after_step(peak_bytes(device_));
  figures_.reserved_bytes = reserved_bytes(device_);
  figures_.highest_peak_bytes = std::max(figures_.highest_peak_bytes, peak_bytes_);
  return true;
}

void Run::log() {
  const StepFigures f = {
      .step = s_.step,
      .steps = total_steps_,
      .epoch = task_.train->epochs(s_.window),
      .loss = s_.interval_loss / static_cast<double>(s_.interval_steps),
      .grad_norm = progress_->grad_norm(),
      .learning_rate = learning_rate_,
      .seconds = recent_step_seconds(figures_, s_.interval_steps),
      .unit = task_.unit,
      .units =
          c_.per_device_train_batch_size * task_.units * c_.gradient_accumulation_steps * c_.ranks,
      .peak_bytes = peak_bytes_,
      .held_bytes = figures_.held_bytes,
      .saved_bytes = figures_.saved_bytes,
      .reserved_bytes = device_.is_cuda() ? std::optional(figures_.reserved_bytes) : std::nullopt,
      .resident_bytes = figures_.resident_bytes = resident_peak()};
  if (output_) output_->metrics().write(s_.step, step_row(f));
  console_.line(step_line(f));
  s_.interval_loss = 0;
  s_.interval_steps = 0;
}

void Run::save(const char* why) {
  const auto write = [&] { saved_ = output_->write_checkpoint(s_, *model_, *optimizer_, why); };
  if (group_.lead(write)) saved_step_ = s_.step;
}

// The others wait, so that none ends before the model is written.
void Run::finish() {
  group_.lead([&] { conclude(); });
  group_.barrier();
}

void Run::conclude() {
  const auto keep = [this](const char* what, FunctionRef<void()> write) {
    write_last(console_, what, write, hooks_.wait, saved_);
  };
  keep("the model", [&] { write_model(c_, task_, *model_); });  // before the best takes its place
  MetricsWriter& metrics = output_->metrics();
  if (evaluation_->take_best(*model_, s_, metrics)) {
    keep("the best model", [&] { write_model(c_, task_, *model_); });
  }
  const Evaluations evaluations = evaluation_->all(*model_, s_, metrics);
  figures_.planned_peak_bytes = plan_->peak_bytes();
  keep("all_results.json", [&] {
    write_results(c_, s_, figures_, evaluations, task_, *model_, *optimizer_);
    metrics.flush();
  });
  if (!s_.bits.empty()) output_->write_bits(s_.bits);
  console_.line(result_line(s_, figures_));
  if (graph_) {
    console_.line(cat("replayed ", graph_->replays(), " of ", figures_.step_seconds.size(),
                      " steps from a graph"));
  }
  console_.line(cat("model in ", c_.output_dir));
}

void Run::show_plan() {
  optimizer_.reset();
  model_.reset();
  if (plan_) plan_->explain(console_);
}

int Run::go() {
  prepare();
  describe();
  while (!last()) {
    if (s_.micro == 0 && bits_->due(s_.step)) choose_bits();
    const bool whole = step();
    int64_t signals = 0;  // of all ranks
    if (whole) {
      const bool logs = s_.step % c_.logging_steps == 0 || last();
      const bool evaluates = evaluation_->due(s_.step) && !last();
      const bool saves = c_.save_steps > 0 && s_.step % c_.save_steps == 0;
      signals = group_.sum_of(own_signal());
      if (logs || evaluates || saves || signals > 0) progress_->settle();
      if (graph_ && (evaluates || last())) graph_->forget();
      if (evaluates || saves || signals > 0 || last()) share_statistics(group_, *model_);
      s_.seconds = seconds_before_ + seconds_since(started_);
      if (logs) log();
      console_.bar(s_.step, total_steps_, "");
      if (evaluates) {
        group_.lead([&] { evaluation_->validate(*model_, s_, output_->metrics()); });
      }
      if (saves) {
        or_warn(console_, cat("checkpoint-", s_.step), [&] { save(""); });
      }
    }
    if (group_.size() == 1) signals = own_signal();  // one that came meanwhile
    const bool asked = !whole || signals > 0;
    if (asked && !(whole && last())) {
      progress_->settle();
      if (saved_step_ != s_.step || !whole)
        save(" on request; go on with --resume_from_checkpoint latest");
      group_.barrier();  // or a launcher would end the one that saves
      return signals < kTerminate ? kExitInterrupt : kExitTerminate;
    }
  }
  finish();
  return kExitOk;
}

}  // namespace

int train(const TrainConfig& config, std::ostream& out, bool terminal, const TrainHooks& hooks) {
  const Place& place = hooks.place;
  std::ostream nowhere(nullptr);
  Console console(place.rank == 0 ? out : nowhere, place.rank == 0 && terminal);
  if (place.size > 1) {
    console.line(cat("ranks    ", place.size, ", which meet at ", place.address, ":", place.port));
  }
  const auto group =
      join_group(place, std::chrono::seconds(std::max<int64_t>(1, config.ddp_timeout)));
  const SignalScope signals;  // until the run has let go of its folder
  return together(*group, [&] {
    check_run(config);
    TrainConfig taken = for_task(config);
    taken.ranks = group->size();
    taken.neighbours = place.neighbours;
    agree_on_start(*group, place.restarts > 0, taken);
    Run run(taken, console, hooks, *group);
    try {
      return run.go();
    } catch (const std::exception& e) {
      if (out_of_memory(e)) run.show_plan();
      throw;
    }
  });
}

}  // namespace compact
