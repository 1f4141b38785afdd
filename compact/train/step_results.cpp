// SPDX-License-Identifier: Apache-2.0
#include "compact/train/step_results.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>
#include <span>
#include <utility>

#include "compact/base/check.h"
#include "compact/config/exit_codes.h"

namespace compact {
namespace {

// In pinned memory where they come from a GPU: the copy runs after what was launched before.
at::Tensor on_host(const at::Tensor& values) {
  if (values.is_cpu()) return values;
  return at::empty(values.sizes(), values.options().device(at::kCPU).pinned_memory(true))
      .copy_(values, /*non_blocking=*/true);
}

std::span<const float> numbers(const at::Tensor& values) {
  return {values.const_data_ptr<float>(), static_cast<size_t>(values.numel())};
}

}  // namespace

StepResults::StepResults(at::Device device, const Optimizer& optimizer, bool late, bool releases)
    : device_(device), optimizer_(optimizer), late_(late), releases_(releases) {
  if (late) guard_ = at::zeros({}, at::device(device).dtype(at::kFloat));
}

const char* StepResults::outcome(bool norm) const {
  if (norm && releases_) {
    return "; stopped, but parameters with release=true may have taken their update: go on from a "
           "checkpoint";
  }
  return late_ ? "; neither its update was made nor one after it" : "; stopped before the update";
}

double StepResults::checked_loss(double value, int64_t number) const {
  if (std::isfinite(value)) return value;
  throw NonFiniteError(cat("step ", number, ": the loss is ",
                           std::isnan(value) ? "nan" : cat(value), outcome(/*norm=*/false)));
}

double StepResults::checked_norm(double value, int64_t number, const std::string& of) const {
  if (std::isfinite(value)) return value;
  throw NonFiniteError(
      cat("step ", number, ": the gradient", of, " is not finite", outcome(/*norm=*/true)));
}

void StepResults::begin(int64_t number, double loss) {
  step_ = {.number = number, .loss = loss};
  losses_.clear();
}

void StepResults::add_loss(const at::Tensor& loss) {
  if (late_) {
    losses_.push_back(loss.detach());
  } else {
    step_.loss += checked_loss(loss.item<double>(), step_.number);
  }
}

void StepResults::add_norm(const at::Tensor& norm) {
  if (!late_) {
    const auto value = norm.item<double>();
    const bool finite = std::isfinite(value);
    step_.norm = checked_norm(value, step_.number,
                              finite ? std::string() : cat(" of ", optimizer_.nonfinite(norm)));
    done_.push_back(step_);
    return;
  }
  losses_.push_back(norm);
  Launched launched{.step = step_, .values = on_host(at::stack(losses_)), .there = {}};
  losses_.clear();
  if (!device_.is_cpu()) {
    launched.there.emplace(device_.type());
    launched.there->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  launched_.push_back(std::move(launched));
}

double StepResults::loss() {
  double sum = step_.loss;
  if (losses_.empty()) return sum;
  const at::Tensor values = at::stack(losses_).cpu();
  for (const float value : numbers(values)) sum += checked_loss(value, step_.number);
  return sum;
}

StepResults::Step StepResults::read(const Launched& launched) const {
  if (launched.there) launched.there->synchronize();
  Step step = launched.step;
  const std::span<const float> values = numbers(launched.values);
  for (const float value : values.first(values.size() - 1)) {
    step.loss += checked_loss(value, step.number);
  }
  step.norm = checked_norm(values.back(), step.number, "");
  return step;
}

std::vector<StepResults::Step> StepResults::take(bool all) {
  std::vector<Step> steps = std::exchange(done_, {});
  while (launched_.size() > (all ? 0 : 1)) {
    steps.push_back(read(launched_.front()));
    launched_.pop_front();
  }
  return steps;
}

}  // namespace compact
