// SPDX-License-Identifier: Apache-2.0
// Optimizer state to and from named tensors and numbers.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string_view>

#include "compact/base/check.h"
#include "compact/optim/optimizer.h"

namespace compact {
namespace {

// Calls f(entry name, tensor) on every tensor that the optimizer itself holds.
template <class F>
void for_tensors(const ParameterState& s, F f) {
  const std::string& name = s.parameter->name;
  for (const auto& [suffix, moment] : {std::pair(".m", &s.m), std::pair(".v", &s.v)}) {
    if (!moment->defined()) continue;
    f(name + suffix, moment->value());
    if (moment->packed()) f(name + suffix + ".scales", moment->scales());
  }
  if (s.master.defined()) f(name + ".master", s.master);
}

// Whether a name is one of those, held or not.
bool is_state_of(const ParameterState& s, std::string_view name) {
  if (!name.starts_with(s.parameter->name)) return false;
  const std::string_view rest = name.substr(s.parameter->name.size());
  return rest == ".m" || rest == ".v" || rest == ".m.scales" || rest == ".v.scales" ||
         rest == ".master";
}

std::string text_of(at::ScalarType type, at::IntArrayRef sizes) {
  return cat(c10::toString(type), " ", sizes);
}

// Entries not yet asked for; whatever is left at the end was not expected.
template <class T>
class Entries {
 public:
  explicit Entries(std::map<std::string, T> all) : all_(std::move(all)) {}
  T take(const std::string& name) {
    auto node = all_.extract(name);
    COMPACT_CHECK(!node.empty(), "[optimizer state] `", name, "` is missing");
    return std::move(node.mapped());
  }
  bool has(const std::string& name) const { return all_.contains(name); }
  void finish() const {
    COMPACT_CHECK(all_.empty(), "[optimizer state] `", all_.begin()->first,
                  "` belongs to no parameter of this model and optimizer");
  }

 private:
  std::map<std::string, T> all_;
};

// A tensor that was saved without padding, with zeros in its place; any other as it is. Codes of a
// vector stay as they are: with padding their blocks would begin elsewhere.
at::Tensor with_padding(const Parameter& p, const at::Tensor& t, at::IntArrayRef sizes) {
  if (p.padding.rows + p.padding.columns == 0 || !t.defined() || t.sizes() == sizes ||
      t.dim() != static_cast<int64_t>(sizes.size()) || (t.dim() == 1 && !t.is_floating_point())) {
    return t;
  }
  const ZeroPadding missing{
      .rows = p.padding.rows,
      .columns = t.dim() > 1 && t.size(1) + p.padding.columns == sizes[1] ? p.padding.columns : 0};
  const int64_t rows = t.size(0) + static_cast<int64_t>(p.parts.size()) * missing.rows;
  return rows == sizes[0] ? padded(t, p.parts, missing) : t;
}

void check_like(const std::string& name, const at::Tensor& t, at::ScalarType type,
                at::IntArrayRef sizes) {
  COMPACT_CHECK(t.defined() && t.scalar_type() == type && t.sizes() == sizes, "[optimizer state] `",
                name, "` must be ", text_of(type, sizes), ", is ",
                t.defined() ? text_of(t.scalar_type(), t.sizes()) : "undefined");
}

}  // namespace

OptimizerState Optimizer::state(Part part) const {
  OptimizerState result;
  result.numbers["updates"] = updates_;
  for (const ParameterState& s : states_) {
    const Parameter& p = *s.parameter;
    COMPACT_CHECK(
        !s.total.defined() && s.partial_sums.empty() && (!reduction_ || !s.gradient().defined()),
        "[optimizer] the state inside a step is not kept where ranks or a tree sum its "
        "gradients: `",
        p.name, "` has some");
    const bool common = s.owner == kEveryRank;
    if (part == Part::kAll || common == (part == Part::kCommon)) {
      for_tensors(s, [&](const std::string& name, const at::Tensor& t) {
        result.tensors.emplace_back(name, t);
      });
    }
    if (part != Part::kOwned && s.gradient().defined()) {
      result.tensors.emplace_back(p.name + ".grad", s.gradient().contiguous());
    }
    if (p.carrier) result.numbers["draw." + p.name] = p.carrier->draw;
  }
  return result;
}

bool Optimizer::is_elsewhere(const std::string& name) const {
  return std::ranges::any_of(
      states_, [&](const ParameterState& s) { return !s.is_own() && is_state_of(s, name); });
}

void Optimizer::load(const OptimizerState& state) {
  const at::NoGradGuard no_grad;
  check_tensors();
  std::map<std::string, at::Tensor> named;
  for (const auto& [name, tensor] : state.tensors) {
    if (is_elsewhere(name)) continue;
    COMPACT_CHECK(named.emplace(name, tensor).second, "[optimizer state] `", name, "` comes twice");
  }
  Entries<at::Tensor> tensors(std::move(named));
  Entries<int64_t> numbers(state.numbers);
  const int64_t updates = numbers.take("updates");
  COMPACT_CHECK(updates >= 0, "[optimizer state] updates must not be negative, is ", updates);
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // to, from
  std::vector<at::Tensor> gradients;
  std::vector<int64_t> draws;
  for (const ParameterState& s : states_) {
    const Parameter& p = *s.parameter;
    for_tensors(s, [&](const std::string& name, const at::Tensor& t) {
      copies.emplace_back(t, with_padding(p, tensors.take(name), t.sizes()));
      check_like(name, copies.back().second, t.scalar_type(), t.sizes());
    });
    const std::string grad = p.name + ".grad", draw = "draw." + p.name;
    gradients.push_back(tensors.has(grad) ? tensors.take(grad) : at::Tensor());
    if (const at::Tensor& g = gradients.back(); g.defined()) {
      COMPACT_CHECK(!options_.tree_sums, "[optimizer state] `", grad,
                    "` was saved inside a step, whose sums are those of a tree: go on without");
      gradients.back() = with_padding(p, g, p.leaf().sizes());
      const bool sum = options_.f32_sums && g.scalar_type() == at::kFloat;
      check_like(grad, g, sum ? at::kFloat : p.leaf().scalar_type(), p.leaf().sizes());
    }
    draws.push_back(p.carrier ? numbers.take(draw) : 0);
    COMPACT_CHECK(draws.back() >= 0, "[optimizer state] `", draw, "` must not be negative, is ",
                  draws.back());
  }
  tensors.finish();
  numbers.finish();

  updates_ = updates;
  clear_gradients();
  for (auto& [to, from] : copies) to.copy_(from);
  for (size_t i = 0; i < states_.size(); ++i) {
    Parameter& p = *states_[i].parameter;
    at::Tensor& sum = states_[i].sum;
    at::Tensor& grad = p.leaf().mutable_grad();
    sum = grad = at::Tensor();
    if (gradients[i].defined()) {
      const bool own_type = gradients[i].scalar_type() == p.leaf().scalar_type();
      (own_type ? grad : sum) = gradients[i].to(p.leaf().device(), false, true);
      if (own_type && options_.f32_sums && grad.scalar_type() != at::kFloat) gather(states_[i]);
    }
    if (p.carrier) p.carrier->redraw(draws[i], p.weight.options());
  }
}

}  // namespace compact
