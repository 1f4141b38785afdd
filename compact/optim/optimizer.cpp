// SPDX-License-Identifier: Apache-2.0
#include "compact/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/codecs/launch.h"
#include "compact/codecs/meta_device.h"
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

MomentKind kind_of_moments(const ParameterState& s, const OptimizerOptions& options) {
  return moment_kind(options.moment ? options.moment(*s.parameter) : "");
}

// Bytes of the elements of moments and master, without scales.
int64_t owned_bytes(const ParameterState& s, const OptimizerOptions& options) {
  const OptimizerInfo::State held = s.kind->state(options);
  const MomentType type = kind_of_moments(s, options).type;
  const int64_t each = type == MomentType::kFloat32 ? 4 : type == MomentType::kBFloat16 ? 2 : 1;
  return (int64_t{held.m} + int64_t{held.v}) * each * s.leaf.numel() +
         (has_master(s, options) ? 4 * s.weight.numel() : 0);
}

void make_state(ParameterState& s, const OptimizerOptions& options) {
  const OptimizerInfo::State held = s.kind->state(options);
  const MomentKind kind = kind_of_moments(s, options);
  const at::TensorOptions like = s.weight.options();
  const std::string& folder = options.offload_folder;
  s.place = kind.place;
  if (held.m) s.m = Moment(s.leaf.sizes(), like, kind, true, folder);
  if (held.v) s.v = Moment(s.leaf.sizes(), like, kind, false, folder);
  if (!has_master(s, options)) return;
  s.master = zeros_in(kind.place, s.weight.sizes(), like.dtype(at::kFloat), folder);
  s.master.copy_(s.weight.detach());
}

// Called by autograd when a backward pass has added to the gradient of a leaf.
class GradientHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit GradientHook(std::function<void()> call) : call_(std::move(call)) {}
  void operator()(const at::Tensor&) override { call_(); }

 private:
  std::function<void()> call_;
};

// The hook of a leaf, or null.
const void* hook_of(const at::Tensor& leaf) {
  using namespace torch::autograd::impl;
  return get_autograd_meta(leaf) ? post_acc_grad_hooks(leaf).get() : nullptr;
}

// Whether gradients of a parameter go into an f32 sum.
bool sums(const OptimizerOptions& options, const at::Tensor& leaf) {
  return options.tree_sums || (options.f32_sums && leaf.scalar_type() != at::kFloat);
}

}  // namespace

bool has_master(const ParameterState& s, const OptimizerOptions& options) {
  return options.master_weights && s.weight.scalar_type() != at::kFloat;
}

uint64_t draws_key(const ParameterState& s, int64_t step, Draws use) {
  return derive(derive(s.key, static_cast<uint64_t>(step)), static_cast<uint64_t>(use));
}

Optimizer::Optimizer(std::vector<Parameter*> parameters, OptimizerOptions options)
    : options_(std::move(options)) {
  const at::NoGradGuard no_grad;
  check_options(options_);
  std::set<std::string> names;
  const uint64_t key = derive(options_.seed, kOptimizerLabel);
  COMPACT_CHECK(
      !options_.tree_sums || options_.zero < 2,
      "[optimizer] from zero 2 on ranks are summed before passes, not in the order of a tree");
  const bool several = options_.group && options_.group->size() > 1;
  const OptimizerInfo& kind = *options_.kind;
  std::vector<int64_t> owned;  // bytes of each parameter's state that one rank alone may hold
  for (Parameter* p : parameters) {
    check_parameter(*p);
    COMPACT_CHECK(p->trained, "[optimizer] `", p->name,
                  "` is frozen: optimizers get trained parameters alone");
    COMPACT_CHECK(p->places.empty() || p->place != MemoryPlace::kDevice,
                  "[optimizer] the weight of `", p->name,
                  "` is with the ranks of an optimizer before this one: gather_weights() before "
                  "that goes");
    COMPACT_CHECK(names.insert(p->name).second, "[optimizer] two parameters are named `", p->name,
                  "`");
    ParameterState s{.parameter = p,
                     .leaf = p->leaf(),
                     .weight = p->weight,
                     .kind = kind.takes && !kind.takes(*p) ? &adamw_optimizer : &kind,
                     .key = derive(key, label_of(p->name.data(), p->name.size()))};
    owned.push_back(owned_bytes(s, options_));
    const bool summed = sums(options_, s.leaf);
    COMPACT_CHECK(!several || !p->release, "[optimizer] `", p->name,
                  "`: release=true updates it before the gradients of all ", options_.group->size(),
                  " ranks are known");
    COMPACT_CHECK(!options_.tree_sums || !p->release, "[optimizer] `", p->name,
                  "`: release=true updates it before gradients are summed as a tree "
                  "(--deterministic_reduce)");
    COMPACT_CHECK(!summed || !p->release, "[optimizer] `", p->name,
                  "` is updated inside the backward pass, which cannot be one of several");
    COMPACT_CHECK(!(summed || several || p->release) || !hook_of(s.leaf), "[optimizer] `", p->name,
                  "` has a hook on its gradient already, of another optimizer or one's own: that "
                  "must be gone first");
    states_.push_back(std::move(s));
  }
  if (several && options_.zero > 0) {
    // Owners are dealt by all that they hold: state, gradients' sums and, at zero 3, weights.
    std::vector<int64_t> loads;
    for (size_t i = 0; i < states_.size(); ++i) {
      const ParameterState& s = states_[i];
      const auto weight = static_cast<int64_t>(options_.zero > 2 ? s.weight.nbytes() : 0);
      loads.push_back(s.leaf.dim() > 1 ? owned[i] + 4 * s.leaf.numel() + weight : 0);
    }
    const std::vector<int> owners = deal_owners(loads, options_.group->size());
    dealt_.assign(static_cast<size_t>(options_.group->size()), 0);
    loads_ = dealt_;
    for (size_t i = 0; i < states_.size(); ++i) {
      states_[i].owner = owners[i];
      if (owners[i] == kEveryRank) continue;
      dealt_[static_cast<size_t>(owners[i])] += owned[i];
      loads_[static_cast<size_t>(owners[i])] += loads[i];
    }
  }
  for (ParameterState& s : states_) {
    if (several) s.rank = options_.group->rank();
    if (s.is_own()) make_state(s, options_);
  }
  if (several) reduction_ = std::make_unique<Reduction>(options_, states_);
  // Hooks are installed last: if the constructor threw, no destructor would remove them.
  for (size_t i = 0; i < states_.size(); ++i) {
    const ParameterState& s = states_[i];
    const bool summed = sums(options_, s.leaf);
    if (!s.parameter->release && !summed && !several) continue;
    auto hook = std::make_unique<GradientHook>([this, i] { gradient_is_whole(i); });
    hooks_.emplace_back(s.leaf, hook.get());
    torch::autograd::impl::set_post_acc_grad_hooks(s.leaf, std::move(hook));
  }
}

Optimizer::~Optimizer() {
  if (shards_ && shards_->is_gathered()) {
    for (Parameter* p : sharded_) {
      std::erase_if(p->places, [&](const WeightPlace& place) { return place.home == shards_; });
    }
  }
  for (const auto& [leaf, hook] : hooks_) {
    if (hook_of(leaf) == hook) torch::autograd::impl::set_post_acc_grad_hooks(leaf, nullptr);
  }
}

void Optimizer::check_tensors() const {
  for (const ParameterState& s : states_) {
    const Parameter& p = *s.parameter;
    COMPACT_CHECK(p.weight.is_same(s.weight) && p.leaf().is_same(s.leaf), "[optimizer] `", p.name,
                  "` has another weight or carrier than when the optimizer was made: change it in "
                  "place, or make another optimizer");
    COMPACT_CHECK(p.weight.is_contiguous(), "[optimizer] weight of `", p.name,
                  "` must be contiguous");
  }
}

void Optimizer::end_pass() {
  if (reduction_) reduction_->begin_step();
  backward_rate_.reset();
  backward_guard_.reset();
  released_.clear();
  released_norms_.clear();
}

void Optimizer::clear_gradients() {
  if (shards_) shards_->settle();
  for (ParameterState& s : states_) {
    s.clear_gradient();
  }
  end_pass();
}

void Optimizer::begin_backward(double learning_rate, const at::Tensor& guard, bool last) {
  check_rate(learning_rate);
  COMPACT_CHECK(!backward_rate_ || std::ranges::count(released_, true) == 0,
                "[optimizer] parameters that are updated inside the backward pass allow one such "
                "pass a step");
  check_scattered();
  check_tensors();
  check_scalar("guard", guard, states_);
  for (const ParameterState& s : states_) {
    COMPACT_CHECK(!s.parameter->release || !s.leaf.grad().defined(), "[optimizer] `",
                  s.parameter->name,
                  "` is updated inside the backward pass, which cannot be one of several");
  }
  if (reduction_ && (last || options_.zero > 1)) reduction_->begin(last);
  backward_rate_ = learning_rate;
  last_pass_ = last;
  backward_guard_ = guard;
  released_.assign(states_.size(), false);
  released_norms_.clear();
}

void Optimizer::gradient_is_whole(size_t index) {
  if (!backward_rate_) return;
  ParameterState& s = states_[index];
  if (s.parameter->release) return release(index);
  COMPACT_CHECK(!reduction_ || !reduction_->is_done(), "[optimizer] `", s.parameter->name,
                "` has a gradient more after the sums over the ranks");
  if (sums(options_, s.leaf)) s.sum_gradient(options_.tree_sums, last_pass_);
  if (reduction_ && reduction_->has_begun()) reduction_->ready(index);
}

// Updates the parameter; called when its gradient is whole.
void Optimizer::release(size_t index) {
  const at::NoGradGuard no_grad;
  ParameterState& s = states_[index];
  std::vector<at::Tensor> norms;
  append_norms(s.leaf.grad(), norms);
  // Asked on the CPU only, without a wait; elsewhere, or with a guard, the step's norm shows it.
  const auto finite = [&](const at::Tensor& norm) {
    return backward_guard_.defined() || !norm.is_cpu() || std::isfinite(norm.item<float>());
  };
  if (!std::ranges::all_of(norms, finite)) return;
  if (backward_guard_.defined()) {
    for (const at::Tensor& norm : norms) backward_guard_.add_(norm, 0);
  }
  update(s, context_of(s, *backward_rate_, {}, backward_guard_));
  released_[index] = true;
  released_norms_.insert(released_norms_.end(), norms.begin(), norms.end());
}

std::map<std::string, int64_t> Optimizer::bytes() const {
  std::map<std::string, int64_t> result;
  for (const ParameterState& s : states_) {
    const bool outside = is_outside(s.place, s.weight.device());
    const auto add = [&](const char* kind, const auto& t) {
      if (t.defined()) result[outside ? "outside" : kind] += static_cast<int64_t>(t.nbytes());
    };
    add(s.v.defined() ? "moment" : "momentum", s.m);
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
