// SPDX-License-Identifier: Apache-2.0
// Updates of parameters that another program owns, by the rows of the optimizers' table: called by
// compact.optim of the Python package.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include <map>
#include <optional>
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
#include "compact/python/projected.h"

namespace compact {
namespace {

using MaybeTensors = c10::List<std::optional<at::Tensor>>;

constexpr uint64_t kPythonOptimizerLabel = 0x707974686f6e;

// Throws InputError on what is out of range; optimizers/checks.py of the package checks the rest.
OptimizerOptions update_options(const std::string& kind, const UpdateNumbers& numbers) {
  const OptimizerOptions options{.kind = &optimizer_named(kind),
                                 .beta1 = numbers.at("beta1"),
                                 .beta2 = numbers.at("beta2"),
                                 .eps = numbers.at("eps"),
                                 .weight_decay = numbers.at("weight_decay"),
                                 .momentum = numbers.at("momentum"),
                                 .nesterov = numbers.at("nesterov") != 0};
  check_options(options);
  check_rate(numbers.at("lr"));
  return options;
}

at::Tensor maybe(const std::optional<at::Tensor>& t) { return t ? *t : at::Tensor(); }

// Throws InputError where state is not as its weight, which may have been moved since.
void check_state(const ParameterState& s) {
  const at::Device device = s.weight.device();
  for (const at::Tensor& t : {s.m.value(), s.v.value(), s.master}) {
    COMPACT_CHECK(!t.defined() || (t.device() == device && t.is_contiguous()),
                  "[optimizer] the state of ", s.parameter->name, " must be contiguous, on ",
                  device, ", has strides ", t.strides(), " on ", t.device());
  }
}

// One update, by the optimizer `kind`, of each of these weights, in place, with their moments: m
// and v, of no elements where the optimizer has none; scales of those that are bytes; masters of
// bf16 weights that have one. `steps`: numbers of the updates, from 1. Random bits come from the
// seed, a parameter's index and the shard of it that the weight is, nothing else. Gradients are
// multiplied by `grad_scale`. Throws InputError, with nothing changed, on numbers out of range and
// on state that was moved; types, shapes and the lists' lengths are the package's to check.
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
    if (held.m) s.m = Moment(m[i], maybe(m_scales.get(i)), true);
    if (held.v) s.v = Moment(v[i], maybe(v_scales.get(i)), false);
    s.master = maybe(masters.get(i));
    COMPACT_CHECK(steps[i] >= 1, "[optimizer] updates count from 1, this one is ", steps[i]);
    check_state(s);
  }
  // Kernels read the elements in order: tensors of other strides, as channels_last, in a copy.
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

// Zeros for state that lives between updates; `place`: as memory_place() reads it.
at::Tensor state_zeros(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device,
                       const std::string& place, const std::string& folder) {
  return zeros_in(memory_place(place), sizes, at::device(device).dtype(dtype), folder);
}

}  // namespace

void Projected::update(const std::string& kind, const at::Tensor& weight, const at::Tensor& grad,
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
  Parameter p;
  p.name = cat("parameter ", index);
  p.weight = read(weight.detach());
  p.hidden = true;
  p.carrier = carrier_of(p.weight);
  p.carrier->value = zero_leaf({p.weight.size(0), p.carrier->rank}, p.weight.options());
  ParameterState s;
  s.parameter = &p;
  s.leaf = p.carrier->value;
  s.weight = p.weight;
  s.kind = options.kind;
  s.key = derive(derive(derive(static_cast<uint64_t>(seed), kPythonOptimizerLabel),
                        static_cast<uint64_t>(index)),
                 uint64_t{0});
  if (held.m) s.m = Moment(*m, maybe(m_scales), true);
  if (held.v) s.v = Moment(*v, maybe(v_scales), false);
  s.master = read(maybe(master));
  check_state(s);
  const StepContext context{
      .options = options,
      .learning_rate = numbers.at("lr") * rate_,
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
  if (period() > 0 && step % period() == 0) compact::redraw(s, options, step);
}

}  // namespace compact

TORCH_LIBRARY_FRAGMENT(compact, m) {
  using namespace compact;
  m.def(
      "update_parameters(str kind, Tensor(a!)[] weights, Tensor[] grads, Tensor(b!)[] m, "
      "Tensor(c!)[] v, Tensor?[] m_scales, Tensor?[] v_scales, Tensor?[] masters, int[] steps, "
      "int[] indices, int[] shards, int seed, Tensor? grad_scale, Dict(str, float) numbers) -> ()",
      &update_parameters);
  m.def("check_update_options", [](const std::string& kind, const UpdateNumbers& numbers) {
    update_options(kind, numbers);
  });
  m.def(
      "state_zeros(int[] sizes, ScalarType dtype, Device device, str place, str folder) -> Tensor",
      &state_zeros);
  m.def("check_disks", check_disks);
  // Elements of a row of an 8-bit moment that share a scale.
  m.def("moment_block", []() -> int64_t { return kernels::kFloat8Block; });
}
