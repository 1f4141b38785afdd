// SPDX-License-Identifier: Apache-2.0
// Optimizer state to and from named tensors and numbers.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
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

// The padding that a tensor saved without it lacks; nullopt where sizes differ otherwise. Codes of
// a vector are not padded: their blocks would begin elsewhere.
std::optional<ZeroPadding> missing_padding(const Parameter& p, const StoredTensor& t,
                                           at::IntArrayRef sizes) {
  if (p.padding.rows + p.padding.columns == 0 || t.sizes.size() != sizes.size() ||
      (t.sizes.size() == 1 && !at::isFloatingType(t.type))) {
    return {};
  }
  const ZeroPadding missing{
      .rows = p.padding.rows,
      .columns =
          t.sizes.size() > 1 && t.sizes[1] + p.padding.columns == sizes[1] ? p.padding.columns : 0};
  const int64_t rows = t.sizes[0] + static_cast<int64_t>(p.parts.size()) * missing.rows;
  return rows == sizes[0] ? std::optional(missing) : std::nullopt;
}

void read(const Parameter& p, const StoredTensor& t, at::Tensor& to) {
  if (to.sizes() == at::IntArrayRef(t.sizes)) return t.read_into(to);
  at::Tensor values = at::empty(t.sizes, t.type);
  t.read_into(values);
  to.copy_(padded(values, p.parts, *missing_padding(p, t, to.sizes())));
}

void check_like(const Parameter& p, const StoredTensor& t, at::ScalarType type,
                at::IntArrayRef sizes) {
  COMPACT_CHECK(
      t.type == type && (sizes == at::IntArrayRef(t.sizes) || missing_padding(p, t, sizes)),
      "[optimizer state] `", t.name, "` must be ", text_of(type, sizes), ", is ",
      text_of(t.type, t.sizes));
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
  StoredState stored{.tensors = {}, .numbers = state.numbers};
  for (const auto& [name, t] : state.tensors) {
    stored.tensors.push_back(
        {name, t.scalar_type(), t.sizes().vec(), [from = t](at::Tensor& to) { to.copy_(from); }});
  }
  load(stored);
}

void Optimizer::load(const StoredState& state) {
  const at::NoGradGuard no_grad;
  check_tensors();
  std::map<std::string, const StoredTensor*> named;
  for (const StoredTensor& t : state.tensors) {
    if (is_elsewhere(t.name)) continue;
    COMPACT_CHECK(named.emplace(t.name, &t).second, "[optimizer state] `", t.name, "` comes twice");
  }
  Entries<const StoredTensor*> tensors(std::move(named));
  Entries<int64_t> numbers(state.numbers);
  const int64_t updates = numbers.take("updates");
  COMPACT_CHECK(updates >= 0, "[optimizer state] updates must not be negative, is ", updates);
  struct Copy {
    const Parameter& parameter;
    const StoredTensor& from;
    at::Tensor to;
  };
  std::vector<Copy> copies;
  std::vector<const StoredTensor*> gradients;
  std::vector<int64_t> draws;
  for (const ParameterState& s : states_) {
    const Parameter& p = *s.parameter;
    for_tensors(s, [&](const std::string& name, const at::Tensor& t) {
      copies.push_back({p, *tensors.take(name), t});
      check_like(p, copies.back().from, t.scalar_type(), t.sizes());
    });
    const std::string grad = p.name + ".grad", draw = "draw." + p.name;
    gradients.push_back(tensors.has(grad) ? tensors.take(grad) : nullptr);
    if (const StoredTensor* const g = gradients.back()) {
      COMPACT_CHECK(!options_.tree_sums, "[optimizer state] `", grad,
                    "` was saved inside a step, whose sums are those of a tree: go on without");
      const bool sum = options_.f32_sums && g->type == at::kFloat;
      check_like(p, *g, sum ? at::kFloat : p.leaf().scalar_type(), p.leaf().sizes());
    }
    draws.push_back(p.carrier ? numbers.take(draw) : 0);
    COMPACT_CHECK(draws.back() >= 0, "[optimizer state] `", draw, "` must not be negative, is ",
                  draws.back());
  }
  tensors.finish();
  numbers.finish();

  updates_ = updates;
  clear_gradients();
  for (Copy& copy : copies) read(copy.parameter, copy.from, copy.to);
  for (size_t i = 0; i < states_.size(); ++i) {
    Parameter& p = *states_[i].parameter;
    at::Tensor& sum = states_[i].sum;
    at::Tensor& grad = p.leaf().mutable_grad();
    sum = grad = at::Tensor();
    if (const StoredTensor* const stored = gradients[i]) {
      const bool own_type = stored->type == p.leaf().scalar_type();
      at::Tensor& to = own_type ? grad : sum;
      to = at::empty(p.leaf().sizes(), p.leaf().options().dtype(stored->type));
      read(p, *stored, to);
      if (own_type && options_.f32_sums && stored->type != at::kFloat) states_[i].sum_gradient();
    }
    if (p.carrier && p.carrier->draw != draws[i]) {
      p.carrier->redraw(draws[i], p.weight.options());
    }
  }
}

}  // namespace compact
