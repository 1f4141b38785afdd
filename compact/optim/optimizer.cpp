// SPDX-License-Identifier: Apache-2.0
#include "compact/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <numeric>
#include <set>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/codecs/launch.h"
#include "compact/optim/update.h"

namespace compact {
namespace {

constexpr uint64_t kOptimizerLabel = 0x6f7074696d;

void check_parameter(const Parameter& p) {
  COMPACT_CHECK(p.weight.defined() && p.weight.is_contiguous(), "[optimizer] weight of `", p.name,
                "` must be contiguous");
  type_of(p.weight);
  COMPACT_CHECK(p.lr_scale >= 0 && std::isfinite(p.lr_scale),
                "[optimizer] learning rate scale of `", p.name, "` must not be negative, is ",
                p.lr_scale);
  const int64_t parts = std::accumulate(p.parts.begin(), p.parts.end(), int64_t{0});
  COMPACT_CHECK(p.parts.empty() || parts == p.weight.size(0), "[optimizer] parts of `", p.name,
                "` must sum to its ", p.weight.size(0), " rows, sum to ", parts);
  if (!p.carrier) return;
  const Carrier& c = *p.carrier;
  const int64_t rows = std::accumulate(c.rows.begin(), c.rows.end(), int64_t{0});
  COMPACT_CHECK(p.weight.dim() == 2 && c.in == p.weight.size(1) && rows == p.weight.size(0),
                "[optimizer] the carrier of `", p.name, "` is for another weight");
  COMPACT_CHECK(c.value.sizes() == at::IntArrayRef({rows, c.rank}), "[optimizer] the carrier of `",
                p.name, "` must be [", rows, ", ", c.rank, "]");
  COMPACT_CHECK(c.period >= 0, "[optimizer] refresh period of `", p.name,
                "` must not be negative, is ", c.period);
}

}  // namespace

uint64_t draws_key(const ParameterState& s, int64_t step, Draws use) {
  return derive(derive(s.key, static_cast<uint64_t>(step)), static_cast<uint64_t>(use));
}

double decay_factor(const ParameterState& s, const StepContext& context) {
  return s.parameter->decay ? 1 - context.learning_rate * context.options.weight_decay : 1;
}

Optimizer::Optimizer(std::vector<Parameter*> parameters, OptimizerOptions options)
    : options_(std::move(options)) {
  const at::NoGradGuard no_grad;
  check_options(options_);
  std::set<std::string> names;
  const uint64_t key = derive(options_.seed, kOptimizerLabel);
  for (Parameter* p : parameters) {
    check_parameter(*p);
    COMPACT_CHECK(names.insert(p->name).second, "[optimizer] two parameters are named `", p->name,
                  "`");
    ParameterState s{.parameter = p, .key = derive(key, label_of(p->name.data(), p->name.size()))};
    const bool matrix = p->weight.dim() == 2;
    s.muon = options_.kind == OptimizerKind::kMuon && matrix && (p->hidden || p->carrier);
    const at::TensorOptions type =
        p->weight.options().dtype(options_.moment ? moment_type(options_.moment(*p)) : at::kFloat);
    s.m = at::zeros(p->leaf().sizes(), type);
    if (!s.muon) s.v = at::zeros(p->leaf().sizes(), type);
    if (options_.master_weights && p->weight.scalar_type() != at::kFloat) {
      s.master = p->weight.detach().to(at::kFloat);
    }
    states_.push_back(std::move(s));
  }
}

void Optimizer::step(double learning_rate, const at::Tensor& grad_scale) {
  COMPACT_CHECK(std::isfinite(learning_rate) && learning_rate >= 0,
                "[optimizer] learning rate must not be negative, is ", learning_rate);
  for (const ParameterState& s : states_) {
    COMPACT_CHECK(s.parameter->leaf().grad().defined(), "[optimizer] `", s.parameter->name,
                  "` has no gradient");
  }
  const at::NoGradGuard no_grad;
  ++updates_;
  for (ParameterState& s : states_) {
    Parameter& p = *s.parameter;
    const double factor = p.hidden || p.carrier ? options_.hidden_lr_factor : 1;
    const StepContext context{options_, learning_rate * factor * p.lr_scale, updates_, grad_scale};
    (s.muon ? muon_step : adamw_step)(s, p.leaf().grad(), context);
    p.leaf().mutable_grad().reset();
    if (p.carrier && p.carrier->period > 0 && updates_ % p.carrier->period == 0) {
      redraw(s, options_, updates_);
    }
  }
}

std::map<std::string, int64_t> Optimizer::bytes() const {
  std::map<std::string, int64_t> result;
  const auto add = [&](const char* kind, const at::Tensor& t) {
    if (t.defined()) result[kind] += static_cast<int64_t>(t.nbytes());
  };
  for (const ParameterState& s : states_) {
    add(s.muon ? "momentum" : "moment", s.m);
    add("second_moment", s.v);
    add("master", s.master);
    if (const Carrier* c = s.parameter->carrier.get()) {
      result["carrier"] += static_cast<int64_t>(c->value.storage().nbytes());
      for (const ProjectionPtr& p : c->projections) result["projection"] += p->bytes();
    }
  }
  return result;
}

}  // namespace compact
