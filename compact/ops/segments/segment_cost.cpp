// SPDX-License-Identifier: Apache-2.0
// The costs of a segment's steps, for choosing which tensors to rebuild.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "compact/codecs/meta_device.h"
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
    if (!side.name.empty()) {
      uses.push_back({side.name, side.role, rebuilt, false, side.treatment.tile() > 0});
    }
    if (slots[i + 1].name.empty()) continue;
    bool signs = steps[i].stage && steps[i].stage->needs().output && steps[i].stage->reads_signs();
    for (const Recipe::Step& reader : steps) {
      signs &= !(reader.stage && reader.input == i + 1 && reader.stage->needs().input);
    }
    uses.push_back(
        {slots[i + 1].name, slots[i + 1].role, rebuilt, signs, slots[i + 1].treatment.tile() > 0});
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
    all.push_back(steps[i].stage
                      ? steps[i].stage->work(input, t[i + 1], steps[i].weights_of(weights), pass)
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

namespace {

constexpr int kRounds = 3;
constexpr double kEnough = 0.05;  // seconds of a step, after which it is not run again

}  // namespace

std::vector<double> Segment::forward_seconds(
    const at::Tensor& x, Weights weights, const SegmentPass& pass, const SegmentPass& on_cpu,
    FunctionRef<double(const Work&, const at::Tensor&, at::ScalarType)> product) const {
  using Clock = std::chrono::steady_clock;
  const at::NoGradGuard no_grad;
  const size_t count = recipe_->steps.size();
  std::vector<double> all;
  Tensors t(count + 1);
  t[0] = x;
  for (size_t i = 0; i < count; ++i) {
    const Recipe::Step& step = recipe_->steps[i];
    const at::Tensor input = t[step.input];
    Stage::Forward planned;
    planned.pass = pass;
    t[i + 1] = recipe_->run(i, t, weights, planned);
    const Weights own = step.weights_of(weights);
    const Work work = step.stage ? step.stage->work(input, t[i + 1], own, pass) : Work();
    if (work.inner > 0) {
      all.push_back(product(work, t[i + 1], own[0].value.scalar_type()));
      continue;
    }
    const std::shared_ptr<const Stage> stage = step.stage ? step.stage->stand_in() : nullptr;
    std::vector<Weight> read;
    for (const Weight& w : own) read.emplace_back(numbers_like(w.value));
    const at::Tensor other = step.other >= 0 ? numbers_like(t[step.other]) : at::Tensor();
    double least = std::numeric_limits<double>::infinity(), spent = 0;
    for (int round = 0; round < kRounds && spent < kEnough; ++round) {
      Stage::Forward f;
      f.pass = on_cpu;
      f.input = numbers_like(input);
      f.overwrite = recipe_->overwritable[step.input];
      f.weights = read;
      const auto start = Clock::now();
      const at::Tensor made = !step.stage ? f.input.add_(other)
                              : stage     ? stage->forward(f)
                                          : step.stage->forward(f);
      const std::chrono::duration<double> seconds = Clock::now() - start;
      least = std::min(least, seconds.count());
      spent += seconds.count();
    }
    all.push_back(least);
  }
  return all;
}

}  // namespace compact
