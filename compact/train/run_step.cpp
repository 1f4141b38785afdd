// SPDX-License-Identifier: Apache-2.0
// A step of a run, and its line.
#include <ATen/ATen.h>

#include <algorithm>

#include "compact/config/memory_limit.h"
#include "compact/ops/memory/memory.h"
#include "compact/ops/memory/memory_trace.h"
#include "compact/plan/train_step.h"
#include "compact/report/step_figures.h"
#include "compact/tasks/setup.h"
#include "compact/train/ranks.h"
#include "compact/train/run_impl.h"
#include "compact/train/signals.h"

namespace compact {

// Probes use the next batch without consuming it.
void Run::choose_bits() {
  progress_->settle();
  const GatheredWeights gathered(group_, *model_, *optimizer_);
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
    if (rewards_) rewards_->add(report_.rewards);
  };
  hooks.after_backward = [&](int64_t micro, const at::Tensor&) {
    plan_->mark_gradients();
    s_.micro = micro + 1;
    const bool stop = SignalScope::count() >= 2 || (hooks_.stop && hooks_.stop(s_.step, micro));
    return !stop || group_.size() > 1 || c_.deterministic_reduce || s_.micro == accumulation;
  };
  const GroupTraffic before = group_.traffic();
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
  report_.rewards = at::Tensor();
  if (output_ && !table.empty()) output_->write_memory(table);
  s_.micro = 0;
  s_.window = task_.train->position();
  s_.tokens += valid;
  figures_.step_samples.push_back(window.samples);
  progress_->end();
  const GroupTraffic sent = group_.traffic();
  figures_.traffic.bytes += sent.bytes - before.bytes;
  figures_.traffic.waited += sent.waited - before.waited;
  figures_.traffic.busy += sent.busy - before.busy;
  // A replay asks for no memory.
  if (!replayed) peak_bytes_ = peak_bytes(device_) - outside_bytes_;
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
      .rewards = rewards_ ? rewards_->of_all(group_) : std::vector<double>(),
      .unit = task_.unit,
      .units = static_cast<double>(task_.units) * recent_step_samples(figures_, s_.interval_steps),
      .peak_bytes = peak_bytes_,
      .held_bytes = figures_.held_bytes,
      .saved_bytes = figures_.saved_bytes,
      .reserved_bytes = device_.is_cuda() ? std::optional(figures_.reserved_bytes) : std::nullopt,
      .resident_bytes = figures_.resident_bytes = resident_peak()};
  if (output_) output_->metrics().write(s_.step, step_row(f));
  console_.line(step_line(f));
  if (rewards_) rewards_->reset();
  s_.interval_loss = 0;
  s_.interval_steps = 0;
}

}  // namespace compact
