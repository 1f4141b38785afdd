// SPDX-License-Identifier: Apache-2.0
// Sends the updates that one rank makes to all ranks. For a projected parameter without a master
// the carrier's update is sent, and every rank folds it into its weight with the same random bits;
// for others the new weight is sent.
#include <ATen/ATen.h>

#include <deque>
#include <optional>

#include "compact/optim/optimizer.h"
#include "compact/optim/update.h"

namespace compact {
namespace {

// Whether the weight is with its owner alone, from whom its readers fetch it.
bool is_sharded(const ParameterState& s, const OptimizerOptions& options) {
  return options.zero > 2 && !s.parameter->places.empty();
}

// The parts of a projected update that are sent; empty: the new weight is sent.
std::vector<FoldPart> sent_parts(const ParameterState& s, const StepContext& context) {
  // In these cases only the owner folds the update into the weight.
  if (!s.parameter->carrier || has_master(s, context.options) || is_sharded(s, context.options)) {
    return {};
  }
  return s.kind->folds(s, context);
}

struct Sent {
  ParameterState* state;
  std::optional<FoldPart> part;  // none: the weight
  StepContext context;
  at::Tensor value;  // undefined until it is received
  PendingPtr pending = {};
};

void begin(Group& group, Sent& sent) {
  const ParameterState& s = *sent.state;
  if (!sent.part) {
    sent.value = s.weight.detach();
  } else if (!sent.value.defined()) {
    sent.value = at::empty({sent.part->rows, s.leaf.size(1)},
                           s.weight.options().dtype(sent.part->type).requires_grad(false));
  }
  sent.pending = group.begin_broadcast(sent.value, s.owner);
}

void finish_sending(Group& group, Sent& sent) {
  group.wait(std::move(sent.pending));
  ParameterState& s = *sent.state;
  if (sent.part) return fold(s, *sent.part, sent.value, sent.context);
  if (!s.is_own()) s.weight.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

// In each round every rank updates one of its parameters and all of these updates are sent; the
// next one is sent while one is folded, so that at most one waits to be folded.
void Optimizer::exchange_updates(double learning_rate, const at::Tensor& grad_scale,
                                 const at::Tensor& guard) {
  if (!reduction_) return;
  Group& group = *options_.group;
  std::vector<std::vector<ParameterState*>> owned(static_cast<size_t>(group.size()));
  for (ParameterState& s : states_) {
    if (s.owner != kEveryRank) owned[static_cast<size_t>(s.owner)].push_back(&s);
  }
  const auto most =
      std::ranges::max(owned, {}, [](const auto& list) { return list.size(); }).size();
  for (size_t round = 0; round < most; ++round) {
    std::deque<Sent> all;
    for (const auto& list : owned) {
      if (round >= list.size()) continue;
      ParameterState& s = *list[round];
      StepContext context = context_of(s, learning_rate, grad_scale, guard);
      const std::vector<FoldPart> parts = sent_parts(s, context);
      std::vector<at::Tensor> made;
      if (s.is_own() && s.gradient().defined()) {  // else a GPU has updated it together with others
        context.updates = parts.empty() ? nullptr : &made;
        update(s, context);
        context.updates = nullptr;
      }
      if (is_sharded(s, options_)) {
        if (!s.is_own()) s.weight.unsafeGetTensorImpl()->bump_version();
        redraw_where_due(s);
        continue;
      }
      if (parts.empty()) all.push_back({&s, std::nullopt, context, {}});
      for (size_t i = 0; i < parts.size(); ++i) {
        all.push_back({&s, parts[i], context, made.empty() ? at::Tensor() : made[i]});
      }
    }
    if (all.empty()) continue;
    begin(group, all.front());
    while (!all.empty()) {
      if (all.size() > 1) begin(group, all[1]);
      finish_sending(group, all.front());
      ParameterState* s = all.front().state;
      all.pop_front();
      if (all.empty() || all.front().state != s) redraw_where_due(*s);
    }
  }
}

}  // namespace compact
