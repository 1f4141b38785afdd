// SPDX-License-Identifier: Apache-2.0
// AdamW, and Adam, of which only the weight decay differs.
#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/codecs/blocks.h"
#include "compact/codecs/launch.h"
#include "compact/optim/update.h"

namespace compact {

kernels::AdamWNumbers adamw_numbers(const StepContext& context, uint64_t key) {
  const OptimizerOptions& o = context.options;
  const auto step = static_cast<double>(context.step);
  return {.lr = static_cast<float>(context.learning_rate),
          .bias1 = static_cast<float>(1 - std::pow(o.beta1, step)),
          .bias2 = static_cast<float>(1 - std::pow(o.beta2, step)),
          .key = key};
}

namespace {

// The kernel's arguments for `target` and moments m and v of its size, f32 or bf16.
kernels::AdamW adamw_of(const ParameterState& s, const at::Tensor& target, const at::Tensor& master,
                        const at::Tensor& grad, const at::Tensor& m, const at::Tensor& v,
                        uint64_t key, const StepContext& context) {
  const OptimizerOptions& o = context.options;
  const kernels::AdamWNumbers now = adamw_numbers(context, key);
  COMPACT_CHECK(m.scalar_type() == v.scalar_type(), "[optimizer] both moments of `",
                s.parameter->name, "` must be of one type, are ", m.scalar_type(), " and ",
                v.scalar_type());
  // A carrier is zero, so decay inside the step would do nothing: the fold decays the weight.
  const double decay = s.parameter->carrier ? 0 : context.weight_decay;
  return {.param = target.data_ptr(),
          .master = floats_of(master),
          .grad = grad.data_ptr(),
          .grad_scale = floats_of(context.grad_scale),
          .m = m.data_ptr(),
          .v = v.data_ptr(),
          .count = target.numel(),
          .lr = now.lr,
          .beta1 = static_cast<float>(o.beta1),
          .beta2 = static_cast<float>(o.beta2),
          .eps = static_cast<float>(o.eps),
          .weight_decay = static_cast<float>(decay),
          .bias1 = now.bias1,
          .bias2 = now.bias2,
          .key = now.key,
          .type = type_of(target),
          .grad_type = type_of(grad),
          .state_type = type_of(m),
          .guard = floats_of(context.guard),
          .numbers = context.numbers};
}

void adamw_on(const ParameterState& s, const at::Tensor& target, const at::Tensor& master,
              const at::Tensor& grad, const at::Tensor& m, const at::Tensor& v, uint64_t key,
              const StepContext& context) {
  backend_of(target).adamw(adamw_of(s, target, master, grad, m, v, key, context),
                           launch_for(target));
}

// A block of rows at a time, whose moments are f32 meanwhile.
void adamw_packed(const ParameterState& s, const at::Tensor& target, const at::Tensor& master,
                  const at::Tensor& grad, uint64_t key, const StepContext& context) {
  const auto part = [&](const at::Tensor& t, int64_t row, int64_t rows) {
    return t.defined() && t.dim() >= 2 ? t.narrow(0, row, rows) : t;
  };
  const int64_t all = s.m.rows();
  for_alike_blocks(target, 0, all,
                   block_rows(target.numel() / std::max<int64_t>(1, all), block_elements(target)),
                   [&](int64_t row, int64_t rows) {
                     const uint64_t own = derive(key, static_cast<uint64_t>(row));
                     const at::Tensor m = s.m.read(row, rows), v = s.v.read(row, rows);
                     adamw_on(s, part(target, row, rows), part(master, row, rows),
                              part(grad, row, rows), m, v, own, context);
                     s.m.write(row, m, derive(own, 1), context.guard);
                     s.v.write(row, v, derive(own, 2), context.guard);
                   });
}

std::vector<FoldPart> whole_fold(const ParameterState& s, const StepContext&) {
  return {{0, s.leaf.size(0), s.parameter->carrier->scale, s.weight.scalar_type()}};
}

void adamw_step(ParameterState& s, const at::Tensor& grad, const StepContext& context) {
  const Carrier* carrier = s.parameter->carrier.get();
  // A carrier's step starts from zero and goes into the weight at once.
  const at::Tensor target =
      carrier ? at::zeros(grad.sizes(), s.parameter->weight.options()) : s.parameter->weight;
  const at::Tensor master = carrier ? at::Tensor() : s.master;
  const uint64_t key = draws_key(s, context.step, Draws::kStep);
  if (s.m.packed()) {
    adamw_packed(s, target, master, grad.contiguous(), key, context);
  } else {
    adamw_on(s, target, master, grad.contiguous(), s.m.value(), s.v.value(), key, context);
  }
  if (!carrier) return target.unsafeGetTensorImpl()->bump_version();
  fold(s, whole_fold(s, context)[0], target, context);
}

bool adamw_steps_together(const ParameterState& s) {
  return !s.parameter->carrier && !s.m.packed();
}

// All parameters are on one device.
void adamw_step_all(std::span<const ParameterStep> steps) {
  std::vector<at::Tensor> grads;  // alive until the kernels are launched
  std::vector<kernels::AdamW> all;
  for (const auto& [s, grad, context] : steps) {
    grads.push_back(grad.contiguous());
    all.push_back(adamw_of(*s, s->weight, s->master, grads.back(), s->m.value(), s->v.value(),
                           draws_key(*s, context.step, Draws::kStep), context));
  }
  if (all.empty()) return;
  const at::Tensor& first = steps.front().state->weight;
  backend_of(first).adamw_all({all.data(), static_cast<int64_t>(all.size())}, launch_for(first));
  for (const ParameterStep& step : steps) step.state->weight.unsafeGetTensorImpl()->bump_version();
}

OptimizerInfo::State two_moments(const OptimizerOptions&) { return {.m = true, .v = true}; }

}  // namespace

extern const OptimizerInfo adamw_optimizer = {
    .name = "adamw",
    .summary = "AdamW (Loshchilov and Hutter 2019) for every parameter",
    .step = adamw_step,
    .state = two_moments,
    .folds = whole_fold,
    .step_all = adamw_step_all,
    .steps_together = adamw_steps_together,
};

extern const OptimizerInfo adam_optimizer = {
    .name = "adam",
    .summary = "Adam (Kingma and Ba 2015), weight decay in the gradient",
    .step = adamw_step,
    .state = two_moments,
    .folds = whole_fold,
    .step_all = adamw_step_all,
    .steps_together = adamw_steps_together,
    .decoupled_decay = false,
};

}  // namespace compact
