// SPDX-License-Identifier: Apache-2.0
// One update of all parameters, and the numbers that a replayed step reads from the device.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "compact/base/check.h"
#include "compact/codecs/launch.h"
#include "compact/codecs/meta_device.h"
#include "compact/optim/optimizer.h"
#include "compact/optim/update.h"

namespace compact {
namespace {

using kernels::AdamWNumbers;

// Whether update number `step` draws other projections for a parameter.
bool redraws(const Parameter& p, int64_t step) {
  return p.carrier && p.carrier->period > 0 && step % p.carrier->period == 0;
}

void check_gradient(const ParameterState& s) {
  const at::Tensor &g = s.gradient(), &leaf = s.leaf;
  COMPACT_CHECK(g.defined(), "[optimizer] `", s.parameter->name, "` has no gradient");
  COMPACT_CHECK(g.sizes() == leaf.sizes() && g.device() == leaf.device(),
                "[optimizer] the gradient of `", s.parameter->name, "` must be of its shape ",
                leaf.sizes(), " on ", leaf.device(), ", is ", g.sizes(), " on ", g.device());
  COMPACT_CHECK(g.scalar_type() == at::kFloat || g.scalar_type() == at::kBFloat16,
                "[optimizer] the gradient of `", s.parameter->name,
                "` must be Float or BFloat16, is ", g.scalar_type());
}

// The scaled gradient plus weight_decay times the weight, f32.
at::Tensor decayed_gradient(const ParameterState& s, const StepContext& context) {
  at::Tensor g = s.gradient().to(at::kFloat);
  if (context.grad_scale.defined()) g = g.mul(context.grad_scale);
  const at::Tensor& weight = s.master.defined() ? s.master : s.weight;
  return g.add(weight.detach().to(at::kFloat), context.weight_decay);
}

// Whether its optimizer updates the parameter together with others.
bool is_together(const ParameterState& s, const StepContext& context) {
  return s.kind->step_all && s.kind->steps_together(s) &&
         (s.kind->decoupled_decay || context.weight_decay == 0);
}

}  // namespace

void check_scalar(const char* name, const at::Tensor& t,
                  const std::vector<ParameterState>& states) {
  if (!t.defined() || states.empty()) return;
  const at::Device device = states.front().weight.device();
  COMPACT_CHECK(t.scalar_type() == at::kFloat && t.numel() == 1 && t.device() == device,
                "[optimizer] ", name, " must be one Float on ", device, ", is ", t.scalar_type(),
                " ", t.sizes(), " on ", t.device());
}

void check_rate(double learning_rate) {
  COMPACT_CHECK(std::isfinite(learning_rate) && learning_rate >= 0,
                "[optimizer] learning rate must not be negative, is ", learning_rate);
}

StepContext Optimizer::context_of(const ParameterState& s, double learning_rate,
                                  const at::Tensor& grad_scale, const at::Tensor& guard) const {
  const Parameter& p = *s.parameter;
  const double factor = p.hidden || p.carrier ? options_.hidden_lr_factor : 1;
  return {.options = options_,
          .learning_rate = learning_rate * factor * p.lr_scale,
          .weight_decay = p.decay ? options_.weight_decay : 0,
          .step = updates_ + 1,
          .grad_scale = grad_scale,
          .guard = guard,
          .numbers = numbers_.defined() ? static_cast<const AdamWNumbers*>(numbers_.data_ptr()) +
                                              (&s - states_.data())
                                        : nullptr};
}

std::string Optimizer::cannot_replay() const {
  for (const ParameterState& s : states_) {
    const std::string name = "`" + s.parameter->name + "` ";
    if (s.parameter->carrier) return name + "has its gradient projected";
    if (s.parameter->release) return name + "is updated inside the backward pass";
    if (s.m.packed()) return name + "has packed moments";
    if (!is_together(s, context_of(s, 0, {}, {}))) {
      return name + "is updated by " + s.kind->name + " with weight decay " +
             cat(options_.weight_decay);
    }
  }
  return {};
}

void Optimizer::prepare(double learning_rate) {
  check_rate(learning_rate);
  const std::string why = cannot_replay();
  COMPACT_CHECK(why.empty(), "[optimizer] updates cannot be replayed: ", why);
  if (states_.empty()) return;
  const at::Device device = states_.front().weight.device();
  const auto bytes = static_cast<int64_t>(states_.size() * sizeof(AdamWNumbers));
  const at::Tensor host =
      at::empty({bytes}, at::device(at::kCPU).dtype(at::kByte).pinned_memory(device.is_cuda()));
  auto* all = static_cast<AdamWNumbers*>(host.data_ptr());
  for (size_t i = 0; i < states_.size(); ++i) {
    all[i] = adamw_numbers(context_of(states_[i], learning_rate, {}, {}),
                           draws_key(states_[i], updates_ + 1, Draws::kStep));
  }
  if (!numbers_.defined()) numbers_ = at::empty({bytes}, host.options().device(device));
  numbers_.copy_(host, /*non_blocking=*/true);
}

void Optimizer::replayed() {
  COMPACT_CHECK(numbers_.defined(), "[optimizer] no update was prepared that could be replayed");
  ++updates_;
}

void Optimizer::update(ParameterState& s, const StepContext& context) {
  if (s.kind->decoupled_decay || s.parameter->carrier || context.weight_decay == 0) {
    s.kind->step(s, s.gradient(), context);
  } else {
    StepContext without = context;
    without.weight_decay = 0;
    without.grad_scale.reset();
    s.kind->step(s, decayed_gradient(s, context), without);
  }
  s.sum.reset();
  s.leaf.mutable_grad().reset();
  if (!context.updates && s.owner == kEveryRank) redraw_where_due(s);
}

void Optimizer::redraw_where_due(ParameterState& s) {
  if (redraws(*s.parameter, updates_ + 1)) redraw(s, options_, updates_ + 1);
}

// Updates of a GPU's parameters that their optimizer makes all at once. On the CPU each gradient is
// freed before the next parameter takes memory.
void Optimizer::update_together(double learning_rate, const at::Tensor& grad_scale,
                                const at::Tensor& guard) {
  std::map<const OptimizerInfo*, std::vector<ParameterStep>> together;
  for (size_t i = 0; i < states_.size(); ++i) {
    ParameterState& s = states_[i];
    const StepContext context = context_of(s, learning_rate, grad_scale, guard);
    if ((backward_rate_ && released_[i]) || !s.is_own() || device_type_of(s.weight) != at::kCUDA ||
        !is_together(s, context)) {
      continue;
    }
    together[s.kind].push_back({&s, s.gradient(), context});
  }
  for (const auto& [kind, steps] : together) {
    kind->step_all(steps);
    for (const ParameterStep& step : steps) {
      step.state->sum.reset();
      step.state->leaf.mutable_grad().reset();
    }
  }
}

bool Optimizer::redraws_next() const {
  return std::ranges::any_of(
      states_, [&](const ParameterState& s) { return redraws(*s.parameter, updates_ + 1); });
}

void Optimizer::step(double learning_rate, const at::Tensor& grad_scale, const at::Tensor& guard) {
  check_rate(learning_rate);
  check_tensors();
  check_summed();
  check_scattered();
  if (shards_) shards_->settle();
  bool any_released = false;
  for (size_t i = 0; i < states_.size(); ++i) {
    const bool released = backward_rate_ && released_[i];
    any_released |= released;
    COMPACT_CHECK(
        backward_rate_ || !states_[i].parameter->release || !states_[i].leaf.grad().defined(),
        "[optimizer] `", states_[i].parameter->name,
        "` is to be updated inside the backward pass (release=true): call begin_backward() "
        "before it");
    if (!released && states_[i].is_own()) check_gradient(states_[i]);
    COMPACT_CHECK(states_[i].is_own() || !states_[i].leaf.grad().defined(), "[optimizer] `",
                  states_[i].parameter->name,
                  "` has a gradient more after the sums over the ranks");
  }
  check_scalar("grad_scale", grad_scale, states_);
  check_scalar("guard", guard, states_);
  COMPACT_CHECK(!any_released || !grad_scale.defined(),
                "[optimizer] gradients cannot be clipped where some were released before all were "
                "known");
  COMPACT_CHECK(!any_released || learning_rate == *backward_rate_, "[optimizer] learning rate ",
                learning_rate,
                " is not the one the backward pass "
                "began with, ",
                *backward_rate_);
  const at::NoGradGuard no_grad;
  update_together(learning_rate, grad_scale, guard);
  for (size_t i = 0; i < states_.size(); ++i) {
    ParameterState& s = states_[i];
    const bool done = (backward_rate_ && released_[i]) || !s.gradient().defined();
    if (!done && s.owner == kEveryRank) update(s, context_of(s, learning_rate, grad_scale, guard));
  }
  exchange_updates(learning_rate, grad_scale, guard);
  ++updates_;
  end_pass();
}

}  // namespace compact
