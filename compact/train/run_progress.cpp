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
  at::Tensor sum = at::zeros({1}, losses_[0].options().dtype(at::kDouble));
  for (const at::Tensor& loss : std::exchange(losses_, {})) sum.add_(loss.to(at::kDouble));
  group_.all_reduce(sum);
  results_.add_loss(late_ ? sum[0].to(at::kFloat) : sum[0]);
}

void RunProgress::add_loss(const at::Tensor& loss) {
  if (group_.size() > 1) return losses_.push_back(loss.detach());
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
}

void RunProgress::settle() {
  count(/*all=*/true);
  if (is_settled()) return;
  synchronize(device_);
  const std::chrono::duration<double> all = Clock::now() - since_;
  figures_.step_seconds.insert(figures_.step_seconds.end(), static_cast<size_t>(launched_),
                               all.count() / static_cast<double>(launched_));
  launched_ = 0;
}

}  // namespace compact
