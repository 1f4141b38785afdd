// SPDX-License-Identifier: Apache-2.0
// Updates of parameters that somebody else's program owns, by the rows of the optimizers' table:
// what compact.optim of the Python package calls.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/codecs/launch.h"
#include "compact/codecs/meta_device.h"
#include "compact/kernels/kernels.h"
#include "compact/ops/autograd/autograd.h"
#include "compact/optim/update.h"
#include "compact/python/update.h"

namespace compact {
namespace {

using MaybeTensors = c10::List<std::optional<at::Tensor>>;

constexpr uint64_t kPythonOptimizerLabel = 0x707974686f6e;

double update_number(const UpdateNumbers& numbers, const char* key) {
  COMPACT_CHECK(numbers.contains(key), "[optimizer] ", key, " must be given");
  return numbers.at(key);
}

// Throws InputError on what is missing, unknown or out of range.
OptimizerOptions update_options(const std::string& kind, const UpdateNumbers& numbers) {
  static const std::set<std::string> kKnown = {"lr",           "beta1",    "beta2",   "eps",
                                               "weight_decay", "momentum", "nesterov"};
  for (const auto& entry : numbers) {
    COMPACT_CHECK(kKnown.contains(entry.key()), "[optimizer] there is no ", entry.key());
  }
  const OptimizerOptions options{.kind = &optimizer_named(kind),
                                 .beta1 = update_number(numbers, "beta1"),
                                 .beta2 = update_number(numbers, "beta2"),
                                 .eps = update_number(numbers, "eps"),
                                 .weight_decay = update_number(numbers, "weight_decay"),
                                 .momentum = update_number(numbers, "momentum"),
                                 .nesterov = update_number(numbers, "nesterov") != 0};
  COMPACT_CHECK(options.kind->decoupled_decay, "[optimizer] ", kind,
                " has its weight decay in the gradient, which is not done here");
  check_options(options);
  check_rate(update_number(numbers, "lr"));
  return options;
}

// The same, and of the type of moments.
void check_update_options(const std::string& kind, const UpdateNumbers& numbers,
                          const std::string& moments) {
  update_options(kind, numbers);
  moment_type(moments);
}

at::Tensor maybe_tensor(const MaybeTensors& all, size_t i) {
  const std::optional<at::Tensor> t = all.get(i);
  return t ? *t : at::Tensor();
}

// Throws InputError on what kernels must not see.
void check_update(const ParameterState& s, const at::Tensor& grad) {
  const Parameter& p = *s.parameter;
  const at::Tensor &w = p.weight, &leaf = p.leaf();
  COMPACT_CHECK(w.scalar_type() == at::kFloat || w.scalar_type() == at::kBFloat16,
                "[optimizer] the weight of ", p.name, " must be Float or BFloat16, is ",
                c10::toString(w.scalar_type()));
  COMPACT_CHECK(
      grad.layout() == at::kStrided && grad.sizes() == leaf.sizes() && grad.device() == w.device(),
      "[optimizer] the gradient of ", p.name, " must be dense ", leaf.sizes(), " on ", w.device(),
      ", is ", grad.sizes(), " on ", grad.device());
  COMPACT_CHECK(grad.scalar_type() == at::kFloat || grad.scalar_type() == at::kBFloat16,
                "[optimizer] the gradient of ", p.name, " must be Float or BFloat16, is ",
                c10::toString(grad.scalar_type()));
  for (const Moment* moment : {&s.m, &s.v}) {
    if (!moment->defined()) continue;
    COMPACT_CHECK(moment->value().sizes() == leaf.sizes() && moment->value().device() == w.device(),
                  "[optimizer] the moments of ", p.name, " must be ", leaf.sizes(), " on ",
                  w.device(), ", are ", moment->value().sizes(), " on ", moment->value().device());
  }
  COMPACT_CHECK(
      !s.m.defined() || !s.v.defined() || s.m.value().scalar_type() == s.v.value().scalar_type(),
      "[optimizer] both moments of ", p.name, " must be of one type");
  COMPACT_CHECK(
      !s.master.defined() || (w.scalar_type() == at::kBFloat16 &&
                              s.master.scalar_type() == at::kFloat && s.master.is_contiguous() &&
                              s.master.sizes() == w.sizes() && s.master.device() == w.device()),
      "[optimizer] the master of ", p.name, " must be Float ", w.sizes(), " on ", w.device(),
      ", of a BFloat16 weight");
  COMPACT_CHECK(!s.kind->takes || s.kind->takes(p), "[optimizer] ", s.kind->name,
                " does not update ", p.name, ", which is ", w.sizes());
}

// One update, by the optimizer `kind`, of each of these weights, in place, with their moments: m
// and v, of no elements where the optimizer has none; scales of those that are bytes; masters of
// bf16 weights that have one. `steps`: numbers of the updates, from 1. Random bits come from the
// seed, a parameter's index and the shard of it that the weight is, nothing else. Gradients are
// multiplied by `grad_scale`. Throws InputError, with nothing changed, on what does not fit.
void update_parameters(const std::string& kind, at::TensorList weights, at::TensorList grads,
                       at::TensorList m, at::TensorList v, const MaybeTensors& m_scales,
                       const MaybeTensors& v_scales, const MaybeTensors& masters,
                       at::IntArrayRef steps, at::IntArrayRef indices, at::IntArrayRef shards,
                       int64_t seed, const std::optional<at::Tensor>& grad_scale,
                       const UpdateNumbers& numbers) {
  const at::NoGradGuard no_grad;
  const NoAutocast no_autocast;
  const OptimizerOptions options = update_options(kind, numbers);
  const OptimizerInfo& info = *options.kind;
  const OptimizerInfo::State held = info.state(options);
  const size_t count = weights.size();
  for (const auto& [name, size, wanted] :
       {std::tuple("gradients", grads.size(), count), std::tuple("m", m.size(), held.m * count),
        std::tuple("v", v.size(), held.v * count),
        std::tuple("scales of m", m_scales.size(), held.m * count),
        std::tuple("scales of v", v_scales.size(), held.v * count),
        std::tuple("masters", masters.size(), count), std::tuple("steps", steps.size(), count),
        std::tuple("indices", indices.size(), count), std::tuple("shards", shards.size(), count)}) {
    COMPACT_CHECK(size == wanted, "[optimizer] there must be ", wanted, " ", name, ", not ", size);
  }
  COMPACT_CHECK(
      !grad_scale || (grad_scale->scalar_type() == at::kFloat && grad_scale->numel() == 1),
      "[optimizer] grad_scale must be one Float, is ", c10::toString(grad_scale->scalar_type()),
      " ", grad_scale->sizes());
  const uint64_t key = derive(static_cast<uint64_t>(seed), kPythonOptimizerLabel);
  std::vector<Parameter> parameters(count);
  std::vector<ParameterState> states(count);
  for (size_t i = 0; i < count; ++i) {
    Parameter& p = parameters[i];
    p.name = cat("parameter ", indices[i]);
    p.weight = weights[i];
    p.hidden = true;
    ParameterState& s = states[i];
    s.parameter = &p;
    s.leaf = s.weight = p.weight;
    s.kind = &info;
    s.key =
        derive(derive(key, static_cast<uint64_t>(indices[i])), static_cast<uint64_t>(shards[i]));
    if (held.m) s.m = Moment(m[i], maybe_tensor(m_scales, i), true);
    if (held.v) s.v = Moment(v[i], maybe_tensor(v_scales, i), false);
    s.master = maybe_tensor(masters, i);
    COMPACT_CHECK(steps[i] >= 1, "[optimizer] updates count from 1, this one is ", steps[i]);
    check_update(s, grads[i]);
  }
  // Kernels read the elements in order: those of other strides, as of channels_last, in a copy.
  const auto hold = [&](size_t i, const at::Tensor& w) {
    states[i].leaf = states[i].weight = parameters[i].weight = w;
  };
  const auto put_back = [&](size_t i) {
    if (weights[i].is_contiguous()) return;
    at::Tensor(weights[i]).copy_(states[i].weight);
    hold(i, weights[i]);
  };
  std::map<c10::DeviceIndex, std::vector<ParameterStep>> together;  // on each GPU
  for (size_t i = 0; i < count; ++i) {
    ParameterState& s = states[i];
    hold(i, weights[i].contiguous());
    const StepContext context{
        .options = options,
        .learning_rate = numbers.at("lr"),
        .weight_decay = options.weight_decay,
        .step = steps[i],
        .grad_scale = grad_scale ? grad_scale->to(s.weight.device()) : at::Tensor(),
        .guard = {}};
    if (device_type_of(s.weight) == at::kCUDA && info.step_all && info.steps_together(s)) {
      together[s.weight.device().index()].push_back({&s, grads[i], context});
    } else {
      info.step(s, grads[i], context);
      put_back(i);
    }
  }
  for (const auto& [device, all] : together) info.step_all(all);
  for (size_t i = 0; i < count; ++i) put_back(i);
}

at::Tensor maybe(const std::optional<at::Tensor>& t) { return t ? *t : at::Tensor(); }

}  // namespace

void update_projected(const c10::intrusive_ptr<Projected>& projected, const std::string& kind,
                      const at::Tensor& weight, const at::Tensor& grad,
                      const std::optional<at::Tensor>& m, const std::optional<at::Tensor>& v,
                      const std::optional<at::Tensor>& m_scales,
                      const std::optional<at::Tensor>& v_scales,
                      const std::optional<at::Tensor>& master, int64_t step, int64_t index,
                      int64_t seed, const std::optional<at::Tensor>& grad_scale,
                      const UpdateNumbers& numbers, bool transposed) {
  const at::NoGradGuard no_grad;
  const NoAutocast no_autocast;
  const OptimizerOptions options = update_options(kind, numbers);
  const OptimizerInfo::State held = options.kind->state(options);
  const auto read = [&](const at::Tensor& t) {
    return t.defined() ? (transposed ? t.t() : t).contiguous() : t;
  };
  COMPACT_CHECK(step >= 1, "[optimizer] updates count from 1, this one is ", step);
  const int64_t period = projected->period(), draw = period > 0 ? (step - 1) / period : 0;
  COMPACT_CHECK(projected->draw() == draw, "[optimizer] parameter ", index, " has projection ",
                projected->draw(), ", its update ", step, " is of number ", draw,
                ": load the optimizer's state before the first pass of a run that goes on");
  Parameter p;
  p.name = cat("parameter ", index);
  p.weight = read(weight.detach());
  p.hidden = true;
  p.carrier = projected->carrier_of(p.weight);
  p.carrier->value = zero_leaf({p.weight.size(0), p.carrier->rank}, p.weight.options());
  ParameterState s;
  s.parameter = &p;
  s.leaf = p.carrier->value;
  s.weight = p.weight;
  s.kind = options.kind;
  s.key = derive(derive(derive(static_cast<uint64_t>(seed), kPythonOptimizerLabel),
                        static_cast<uint64_t>(index)),
                 uint64_t{0});
  COMPACT_CHECK((!held.m || m) && (!held.v || v), "[optimizer] the moments of ", p.name,
                " must be given");
  if (held.m) s.m = Moment(*m, maybe(m_scales), true);
  if (held.v) s.v = Moment(*v, maybe(v_scales), false);
  s.master = read(maybe(master));
  check_update(s, grad);
  const StepContext context{
      .options = options,
      .learning_rate = numbers.at("lr") * projected->rate(),
      .weight_decay = options.weight_decay,
      .step = step,
      .grad_scale = grad_scale ? grad_scale->to(s.weight.device()) : at::Tensor(),
      .guard = {}};
  options.kind->step(s, grad, context);
  const auto write = [&](const at::Tensor& t, const at::Tensor& was) {
    if (!t.is_same(was) && !t.is_alias_of(was)) at::Tensor(was).copy_(transposed ? t.t() : t);
  };
  write(p.weight, weight.detach());
  if (master) write(s.master, *master);
  if (period > 0 && step % period == 0) redraw(s, options, step);
}

}  // namespace compact

TORCH_LIBRARY_FRAGMENT(compact, m) {
  using namespace compact;
  m.def(
      "update_parameters(str kind, Tensor(a!)[] weights, Tensor[] grads, Tensor(b!)[] m, "
      "Tensor(c!)[] v, Tensor?[] m_scales, Tensor?[] v_scales, Tensor?[] masters, int[] steps, "
      "int[] indices, int[] shards, int seed, Tensor? grad_scale, Dict(str, float) numbers) -> ()",
      &update_parameters);
  m.def("check_update_options", &check_update_options);
  // Elements of a row of an 8-bit moment that share a scale.
  m.def("moment_block", []() -> int64_t { return kernels::kFloat8Block; });
}
