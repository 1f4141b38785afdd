// SPDX-License-Identifier: Apache-2.0
// AdamW, Muon and SGD over a model's parameters, full and projected. A projected parameter (one
// with a carrier C) is stepped in the projected space: the step makes C from zero, the fold adds
// scale * C P^T to the weight and zeroes C (CompAct, arXiv 2410.15352).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compact/codecs/parameter.h"
#include "compact/optim/moment.h"
#include "compact/optim/options.h"

namespace compact {

// What a parameter has beside weight and gradient.
struct ParameterState {
  Parameter* parameter = nullptr;
  OptimizerKind kind = OptimizerKind::kAdamW;  // of its updates
  uint64_t key = 0;                            // of its stochastic rounding: from seed and name
  Moment m;           // shape of the leaf: AdamW's first moment or the momentum; undefined without
  Moment v;           // shape of the leaf; AdamW only
  at::Tensor master;  // f32, shape of the weight; undefined where the weight is f32 or has none
  at::Tensor sum;     // f32, shape of the leaf: gradients so far, under OptimizerOptions::f32_sums

  // What the next update takes; undefined where there is none.
  const at::Tensor& gradient() const { return sum.defined() ? sum : parameter->leaf().grad(); }
};

// Enough for a bit-exact resume: moments, master weights, pending gradients; update count and
// numbers of the draws. Tensors are shared with the optimizer, not copied.
struct OptimizerState {
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // NAME.m, .v, .master, .grad, .m.scales
  std::map<std::string, int64_t> numbers;                   // updates, draw.NAME
};

struct StepContext;

class Optimizer {
 public:
  // Parameters must outlive the optimizer. Moments and masters are allocated here; a master takes
  // the weight's values. Throws InputError on repeated names, weights that are not contiguous or of
  // another type than f32 and bf16, and options out of range.
  Optimizer(std::vector<Parameter*> parameters, OptimizerOptions options);
  Optimizer(const Optimizer&) = delete;  // parameters' hooks point to it
  ~Optimizer();

  // The norm of all leaves' gradients together, released ones included, f32 [] on the parameters'
  // device. A projected parameter counts with |G P|, whose mean square is |G|^2.
  at::Tensor gradient_norm() const;
  // min(1, max_norm / (norm + 1e-6)), f32 []: what step() multiplies gradients with.
  static at::Tensor clip_factor(const at::Tensor& norm, double max_norm);
  // Empty where `norm` is finite; else the first parameter whose gradient is not, or "gradient
  // norm" where only the sum overflows. Reads from the device.
  std::string nonfinite(const at::Tensor& norm) const;

  // To be called before every backward pass of a step under OptimizerOptions::f32_sums, and before
  // the only one where a parameter is to be updated inside it (Parameter::release): each such one
  // is, as soon as its gradient is whole, and the gradient is freed. step() then updates the
  // others. On the CPU a gradient that is not finite is left, with its parameter, as it is; on a
  // GPU, where seeing that would be a wait for each, it is taken like others, and gradient_norm()
  // tells of it. Throws InputError, where a parameter that is to be released has a gradient.
  void begin_backward(double learning_rate);

  // One update of every parameter that still has a gradient to give, gradients multiplied by
  // `grad_scale` (f32 [], or undefined for 1). Each gradient is released, unchanged, once its
  // parameter is updated. Call it after the last backward pass of the step: it writes the weights,
  // and at the end of a period re-draws the projections, so that the next forward and backward see
  // one P. Throws InputError, with nothing changed, where a parameter has no gradient or one of
  // another shape or device, or where some are released and `grad_scale` is given: they were
  // updated without it.
  void step(double learning_rate, const at::Tensor& grad_scale = {});

  int64_t updates() const { return updates_; }
  const std::vector<ParameterState>& states() const { return states_; }

  OptimizerState state() const;
  // Throws InputError, with nothing changed, on a missing, unexpected or misshapen entry. Re-draws
  // the projections in force.
  void load(const OptimizerState& state);

  // Bytes by kind: moment, second_moment, momentum, master, carrier, projection.
  std::map<std::string, int64_t> bytes() const;

 private:
  void update(ParameterState& state, const StepContext& context);
  StepContext context_of(const ParameterState& state, double learning_rate,
                         const at::Tensor& grad_scale) const;
  void release(size_t index);
  void gather(ParameterState& state);

  std::vector<ParameterState> states_;
  std::vector<const Parameter*> hooked_;
  OptimizerOptions options_;
  int64_t updates_ = 0;
  // Of the step whose backward pass began: its learning rate, what is updated, with which norms.
  std::optional<double> backward_rate_;
  std::vector<bool> released_;
  std::vector<at::Tensor> released_norms_;
};

}  // namespace compact
