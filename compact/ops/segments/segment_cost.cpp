// SPDX-License-Identifier: Apache-2.0
// What a segment's steps cost: for choosing which tensors to rebuild.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "compact/ops/segments/segment.h"

namespace compact {

std::vector<SlotUse> Segment::uses() const {
  const std::vector<Slot>& slots = recipe_->slots;
  const std::vector<Recipe::Step>& steps = recipe_->steps;
  std::vector<SlotUse> uses;
  if (!slots[0].name.empty()) uses.push_back({slots[0].name, slots[0].role});
  for (int i = 0; i < static_cast<int>(steps.size()); ++i) {
    const bool rebuilt = recipe_->can_be_rebuilt(i + 1);
    const Slot& side = steps[i].side;
    if (!side.name.empty()) uses.push_back({side.name, side.role, rebuilt});
    if (slots[i + 1].name.empty()) continue;
    bool signs = steps[i].stage && steps[i].stage->needs().output && steps[i].stage->reads_signs();
    for (const Recipe::Step& reader : steps) {
      signs &= !(reader.stage && reader.input == i + 1 && reader.stage->needs().input);
    }
    uses.push_back({slots[i + 1].name, slots[i + 1].role, rebuilt, signs});
  }
  return uses;
}

std::vector<bool> Segment::projectable() const {
  std::vector<bool> all(static_cast<size_t>(recipe_->parameters));
  const std::vector<Recipe::Step>& steps = recipe_->steps;
  const Wanted wanted = recipe_->everything();
  for (const Recipe::Step& step : steps) {
    if (!step.stage || !step.stage->may_project()) continue;
    const auto reads = [&](const Recipe::Step& other) {
      return other.input == step.input && !(other.stage && other.stage->may_project()) &&
             other.reads_input(wanted);
    };
    const bool made_by_reader = step.input > 0 && steps[step.input - 1].stage &&
                                steps[step.input - 1].stage->needs().output;
    all[static_cast<size_t>(step.first_parameter)] =
        !made_by_reader && std::ranges::none_of(steps, reads);
  }
  return all;
}

std::vector<int64_t> Segment::variants() const {
  std::vector<int64_t> all;
  for (const Recipe::Step& step : recipe_->steps) {
    if (step.stage) all.push_back(step.stage->variant());
  }
  return all;
}

std::vector<Work> Segment::work(const at::Tensor& x, Weights weights,
                                const SegmentPass& pass) const {
  const at::NoGradGuard no_grad;
  const std::vector<Recipe::Step>& steps = recipe_->steps;
  std::vector<Work> all;
  Tensors t(recipe_->slots.size());
  t[0] = x;
  for (size_t i = 0; i < steps.size(); ++i) {
    const at::Tensor input = t[steps[i].input];
    Stage::Forward f;
    f.pass = pass;
    t[i + 1] = recipe_->run(i, t, weights, f);
    // A sum reads two tensors and writes one.
    all.push_back(steps[i].stage ? steps[i].stage->work(input, t[i + 1], steps[i].of(weights))
                                 : Work{.bytes = 3.0 * static_cast<double>(t[i + 1].nbytes())});
  }
  return all;
}

std::vector<bool> Segment::rerun() const {
  const std::vector<Recipe::Step>& steps = recipe_->steps;
  const Wanted wanted = recipe_->everything();
  std::vector<bool> there(recipe_->slots.size()), again(steps.size(), false);
  for (size_t t = 0; t < there.size(); ++t) there[t] = recipe_->stored(static_cast<int>(t));
  const auto restore = [&](const auto& self, int tensor) -> void {
    if (there[tensor]) return;
    const Recipe::Step& step = steps[tensor - 1];
    self(self, step.input);
    if (step.other >= 0) self(self, step.other);
    there[tensor] = again[tensor - 1] = true;
    // It was made in the memory of its input.
    if (recipe_->overwritable[step.input]) there[step.input] = false;
  };
  for (int i = static_cast<int>(steps.size()) - 1; i >= 0; --i) {
    if (!steps[i].stage) continue;
    if (steps[i].stage->needs().output) restore(restore, i + 1);
    if (steps[i].reads_input(wanted)) restore(restore, steps[i].input);
  }
  return again;
}

std::vector<double> Segment::forward_seconds(const at::Tensor& x, Weights weights, int rounds,
                                             const SegmentPass& pass) const {
  using Clock = std::chrono::steady_clock;
  const at::NoGradGuard no_grad;
  const size_t count = recipe_->steps.size();
  std::vector<double> least(count, std::numeric_limits<double>::infinity());
  for (int round = 0; round < rounds; ++round) {
    Tensors t(count + 1);
    t[0] = x;
    for (size_t i = 0; i < count; ++i) {
      Stage::Forward f;
      f.pass = pass;
      const auto start = Clock::now();
      t[i + 1] = recipe_->run(i, t, weights, f);
      const std::chrono::duration<double> seconds = Clock::now() - start;
      least[i] = std::min(least[i], seconds.count());
    }
  }
  return least;
}

}  // namespace compact
