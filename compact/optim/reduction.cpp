// SPDX-License-Identifier: Apache-2.0
#include "compact/optim/reduction.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "compact/base/check.h"
#include "compact/optim/optimizer.h"

namespace compact {
namespace {

// Most sums under way whose gradients are released afterwards: about the matrices of one block.
constexpr size_t kMostUnderWay = 4;

const at::Tensor& gradient_of(const ParameterState& s) {
  const at::Tensor& g = s.gradient();
  COMPACT_CHECK(g.defined(), "[optimizer] `", s.parameter->name,
                "` has no gradient to be summed over the ranks");
  return g;
}

}  // namespace

Reduction::Reduction(const OptimizerOptions& options, std::vector<ParameterState>& states)
    : group_(*options.group),
      states_(states),
      type_(options.reduce_type),
      every_pass_(options.zero > 1),
      ready_(states.size(), false) {
  for (size_t i = states.size(); i-- > 0;) {
    (states[i].leaf.dim() > 1 ? matrices_ : vectors_).push_back(i);
  }
}

void Reduction::begin(bool last) {
  COMPACT_CHECK(!begun_ && !done_,
                "[optimizer] gradients of the step have been summed over the ranks, or are "
                "being: one backward pass of it is the last");
  begun_ = true;
  last_ = last;
  next_ = 0;
  ready_.assign(states_.size(), false);
}

void Reduction::ready(size_t index) {
  const at::NoGradGuard no_grad;
  COMPACT_CHECK(!ready_[index], "[optimizer] `", states_[index].parameter->name,
                "` has a second gradient while the first is summed over the ranks: one "
                "begin_backward() is for one backward pass");
  ready_[index] = true;
  while (next_ < matrices_.size() && ready_[matrices_[next_]]) start_next();
}

// Matrices that all ranks update are summed once, in the last pass; those of owners in every pass.
void Reduction::start_next() {
  const size_t index = matrices_[next_];
  if (last_ || states_[index].owner != kEveryRank) start(index);
  ++next_;
}

void Reduction::start(size_t index) {
  ParameterState& s = states_[index];
  // Few sums may be under way where gradients are released afterwards or are copies. The limit is a
  // count, independent of the speed of sums, so that memory is as planned.
  const bool few = s.owner != kEveryRank || type_ != at::kFloat;
  while (few && started_.size() >= kMostUnderWay) retire();
  if (every_pass_ && s.passes > 0 && !s.gradient().defined()) {
    s.sum = at::zeros(s.leaf.sizes(), s.leaf.options().dtype(at::kFloat).requires_grad(false));
  }
  at::Tensor dense = gradient_of(s).contiguous();
  if (type_ != at::kFloat) dense = dense.to(type_);
  started_.push_back({index, dense,
                      s.owner == kEveryRank ? group_.begin_all_reduce(dense)
                                            : group_.begin_reduce(dense, s.owner)});
}

void Reduction::start_all() {
  while (next_ < matrices_.size()) start_next();
  while (!started_.empty()) retire();
}

void Reduction::retire() {
  Started first = std::move(started_.front());
  started_.pop_front();
  group_.wait(std::move(first.pending));
  ParameterState& s = states_[first.index];
  // If the step has only this pass, there is no total to add to.
  if (every_pass_) s.passes = last_ ? 0 : s.passes + 1;
  const bool adds = every_pass_ && s.owner != kEveryRank && !(last_ && !s.total.defined());
  if (s.is_own() && !adds) {
    if (!first.dense.is_same(s.gradient())) s.gradient().copy_(first.dense);
    return;
  }
  if (s.is_own()) {
    s.total = s.total.defined() ? s.total.add_(first.dense) : first.dense.to(at::kFloat);
  }
  s.sum.reset();
  s.leaf.mutable_grad().reset();
  if (last_ && s.is_own()) s.sum = std::exchange(s.total, {});
}

void Reduction::end_pass() {
  if (!begun_ || last_) return;
  const at::NoGradGuard no_grad;
  start_all();
  begun_ = false;
}

void Reduction::sum_vectors() {
  int64_t count = 0;
  for (const size_t i : vectors_) count += gradient_of(states_[i]).numel();
  if (count == 0) return;
  const at::Tensor all =
      at::empty({count}, gradient_of(states_[vectors_[0]]).options().dtype(at::kFloat));
  const auto each = [&](auto f) {
    int64_t at = 0;
    for (const size_t i : vectors_) {
      const at::Tensor& g = gradient_of(states_[i]);
      f(g, all.narrow(0, at, g.numel()).view(g.sizes()));
      at += g.numel();
    }
  };
  each([](const at::Tensor& g, const at::Tensor& part) { part.copy_(g); });
  group_.all_reduce(all);
  each([](const at::Tensor& g, const at::Tensor& part) { g.copy_(part); });
}

void Reduction::finish() {
  const at::NoGradGuard no_grad;
  if (!begun_) begin(/*last=*/true);
  start_all();
  sum_vectors();
  begun_ = false;
  done_ = true;
}

void Reduction::begin_step() {
  started_.clear();
  begun_ = done_ = false;
}

}  // namespace compact
