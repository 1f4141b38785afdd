// SPDX-License-Identifier: Apache-2.0
#include "compact/train/run_progress.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "compact/ops/memory/memory.h"

namespace compact {
namespace {

bool releases(const Network& network) {
  return std::ranges::any_of(network.parameters(), [](const Parameter* p) { return p->release; });
}

}  // namespace

RunProgress::RunProgress(const Network& network, const Optimizer& optimizer, bool late,
                         Group& group, RunState& state, RunFigures& figures)
    : device_(network.device()),
      optimizer_(optimizer),
      late_(late),
      releases_(releases(network)),
      group_(group),
      state_(state),
      figures_(figures),
      results_(device_, optimizer, late, releases_) {}

void RunProgress::begin() {
  if (is_settled()) since_ = Clock::now();
  results_.begin(state_.step + 1, state_.micro == 0 ? 0 : state_.step_loss);
}

// Were one rank to stop before the others know, they would wait for it.
void RunProgress::add_losses_of_all() {
  if (!late_) {
    const double sum = group_.sum_of(std::exchange(loss_, 0));
    return results_.add_loss(at::scalar_tensor(sum, at::kDouble));
  }
  const at::Tensor sum = at::stack(std::exchange(losses_, {})).sum().view({1});
  group_.all_reduce(sum);
  results_.add_loss(sum[0]);
}

void RunProgress::add_loss(const at::Tensor& loss) {
  if (group_.size() > 1) {
    if (late_) return losses_.push_back(loss.detach());
    loss_ += loss.item<double>();
    return;
  }
  results_.add_loss(loss);
  if (!releases_ || !optimizer_.redraws_next()) return;
  count(/*all=*/true);
  results_.loss();
}

void RunProgress::add_norm(const at::Tensor& norm) {
  if (group_.size() > 1) add_losses_of_all();
  results_.add_norm(norm);
  if (optimizer_.redraws_next()) count(/*all=*/true);
}

void RunProgress::end() {
  ++launched_;
  // The first step of a process takes a time of its own.
  if (!late_ || figures_.step_seconds.empty()) settle();
  count(/*all=*/false);
}

void RunProgress::stop_inside() {
  count(/*all=*/true);
  state_.step_loss = results_.loss();
}

void RunProgress::count(bool all) {
  for (const StepResults::Step& step : results_.take(all)) {
    state_.step_loss = step.loss;
    state_.interval_loss += step.loss;
    state_.total_loss += step.loss;
    ++state_.interval_steps;
    grad_norm_ = step.norm;
  }
  if (all) group_.check();
}

void RunProgress::settle() {
  count(/*all=*/true);
  if (is_settled()) return;
  synchronize(device_);
  group_.check();
  const std::chrono::duration<double> all = Clock::now() - since_;
  figures_.step_seconds.insert(figures_.step_seconds.end(), static_cast<size_t>(launched_),
                               all.count() / static_cast<double>(launched_));
  launched_ = 0;
}

}  // namespace compact
