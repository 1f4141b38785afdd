// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/step_memory.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/kernels/kernels.h"

namespace compact {

bool StepMemory::has(const StepMoment& moment) const {
  return std::ranges::any_of(moments, [&](const auto& each) { return each.first == moment; });
}

int64_t StepMemory::at(const StepMoment& moment) const {
  for (const auto& [each, bytes] : moments) {
    if (each == moment) return bytes;
  }
  fail("[plan] a step has no moment `", str(moment), "`");
}

void StepMemory::add_matrix_library(int64_t bytes) {
  matrix_library += bytes;
  peak += bytes;
  for (auto& [moment, most] : moments) most += bytes;
}

StepRecorder::StepRecorder(const Network& model, const Optimizer& optimizer)
    : model_(model), optimizer_(optimizer) {}

void StepRecorder::begin(int64_t outside) {
  before_ = live_bytes(model_.device()) - outside;
  if (model_.device().is_meta()) reset_peak(at::kMeta);
  start_trace(model_.device().type());
}

void StepRecorder::mark_gradients() {
  gradients_ = 0;
  for (const ParameterState& s : optimizer_.states()) {
    const at::Tensor& gradient = s.total.defined() ? s.total : s.gradient();
    trace_gradient(gradient);
    for (const at::Tensor& sum : s.partial_sums) trace_gradient(sum);
    if (!s.is_own()) continue;
    // One that is released inside the backward pass is of its leaf's type.
    gradients_ +=
        static_cast<int64_t>(gradient.defined() ? gradient.nbytes() : s.parameter->leaf().nbytes());
  }
}

StepMemory StepRecorder::finish(const PassReport& report) {
  trace_ = stop_trace();
  const MemoryTimeline timeline = timeline_of(trace_);
  StepMemory m;
  for (const Parameter* p : model_.parameters()) {
    (is_outside(p->place, model_.device()) ? m.weights_outside : m.weights) += p->weight_bytes();
  }
  for (const auto& [kind, bytes] : optimizer_.bytes()) {
    (kind == "outside"                           ? m.outside
     : kind == "carrier" || kind == "projection" ? m.projections
                                                 : m.optimizer) += bytes;
  }
  m.gradients = gradients_;
  m.other = before_ - m.weights - m.optimizer - m.projections;
  m.slots = report.all_slots();
  for (const SlotBytes& slot : m.slots) m.saved += slot.stored;
  if (model_.device().is_meta()) m.host = peak_host_bytes();
  m.held = timeline.held;
  m.at_peak = timeline.peak;
  m.peak = before_ + timeline.peak.total;
  for (const auto& [moment, bytes] : timeline.moments) {
    m.moments.emplace_back(moment, before_ + bytes);
  }
  return m;
}

StepMemory run_step(const Network& model, Optimizer& optimizer, const StepShape& shape,
                    const std::function<StepInputs(int64_t)>& micro_batch, StepRecorder& recorder,
                    int64_t outside) {
  recorder.begin(outside);
  trace_moment(Phase::kBatch);
  std::vector<StepInputs> batches;
  for (int64_t i = 0; i < shape.accumulation; ++i) {
    batches.push_back(micro_batch(i));
    batches.back().target.ne(kernels::kIgnoreIndex).sum();
  }
  PassReport report;
  StepSettings settings{.accumulation = shape.accumulation,
                        .loss_scale = 1e-3,
                        .learning_rate = 1e-3,
                        .max_grad_norm = shape.clip ? 1.0 : 0.0,
                        .report = &report};
  // As a run on a GPU has it.
  const at::Device device = model.device();
  if (device.is_meta() && meta_device() == c10::kCUDA) {
    settings.guard = at::zeros({}, at::device(device).dtype(at::kFloat));
  }
  const StepHooks hooks{.after_backward = [&](int64_t, const at::Tensor&) {
    recorder.mark_gradients();
    return true;
  }};
  train_step(
      model, optimizer, settings, [&](int64_t i) { return batches[static_cast<size_t>(i)]; },
      hooks);
  return recorder.finish(report);
}

}  // namespace compact
