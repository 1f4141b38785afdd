// SPDX-License-Identifier: Apache-2.0
// What a segment's steps cost: for choosing which tensors to rebuild.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "compact/ops/segment.h"

namespace compact {

bool Segment::can_be_rebuilt(int tensor) const {
  if (tensor == 0) return false;
  const auto there = [&](int t) { return t < 0 || !slots_[t].name.empty() || can_be_rebuilt(t); };
  return there(steps_[tensor - 1].input) && there(steps_[tensor - 1].other);
}

std::vector<SlotUse> Segment::uses() const {
  std::vector<SlotUse> uses;
  if (!slots_[0].name.empty()) uses.push_back({slots_[0].name});
  for (int i = 0; i < static_cast<int>(steps_.size()); ++i) {
    const bool rebuilt = can_be_rebuilt(i + 1);
    if (!steps_[i].side.name.empty()) uses.push_back({steps_[i].side.name, rebuilt});
    if (slots_[i + 1].name.empty()) continue;
    bool signs =
        steps_[i].stage && steps_[i].stage->needs().output && steps_[i].stage->reads_signs();
    for (const Step& reader : steps_) {
      signs &= !(reader.stage && reader.input == i + 1 && reader.stage->needs().input);
    }
    uses.push_back({slots_[i + 1].name, rebuilt, signs});
  }
  return uses;
}

std::vector<std::string> Segment::named_slots() const {
  std::vector<std::string> names;
  for (const SlotUse& use : uses()) names.push_back(use.name);
  return names;
}

std::vector<Work> Segment::work(int64_t tokens, int64_t length, int64_t element_size) const {
  std::vector<Work> all;
  for (const Step& step : steps_) {
    // A sum reads two tensors as wide as the segment's input and writes one.
    all.push_back(step.stage ? step.stage->work(tokens, length, element_size)
                             : Work{.bytes = 3.0 * static_cast<double>(tokens * slots_[0].width *
                                                                       element_size)});
  }
  return all;
}

std::vector<Work> Segment::work(const at::Tensor& x) const {
  if (x.dim() == 3) {
    return work(x.size(0) * x.size(1), x.size(1), static_cast<int64_t>(x.element_size()));
  }
  const at::NoGradGuard no_grad;
  std::vector<Work> all;
  Tensors t(slots_.size());
  t[0] = x;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const at::Tensor input = t[steps_[i].input];
    Stage::Forward f;
    t[i + 1] = run(i, t, f);
    all.push_back(steps_[i].stage ? steps_[i].stage->map_work(input, t[i + 1])
                                  : Work{.bytes = 3.0 * static_cast<double>(t[i + 1].nbytes())});
  }
  return all;
}

std::vector<bool> Segment::rerun() const {
  std::vector<bool> there(slots_.size()), again(steps_.size(), false);
  for (size_t t = 0; t < slots_.size(); ++t) there[t] = stored(static_cast<int>(t));
  const auto restore = [&](const auto& self, int tensor) -> void {
    if (there[tensor]) return;
    const Step& step = steps_[tensor - 1];
    self(self, step.input);
    if (step.other >= 0) self(self, step.other);
    there[tensor] = again[tensor - 1] = true;
    // It was made in the memory of its input.
    if (overwritable_[step.input]) there[step.input] = false;
  };
  for (int i = static_cast<int>(steps_.size()) - 1; i >= 0; --i) {
    if (!steps_[i].stage) continue;
    const Stage::Needs needs = steps_[i].stage->needs();
    if (needs.output) restore(restore, i + 1);
    if (needs.input && !steps_[i].sketch) restore(restore, steps_[i].input);
  }
  return again;
}

std::vector<double> Segment::forward_seconds(const at::Tensor& x, int rounds) const {
  using Clock = std::chrono::steady_clock;
  const at::NoGradGuard no_grad;
  std::vector<double> least(steps_.size(), std::numeric_limits<double>::infinity());
  for (int round = 0; round < rounds; ++round) {
    Tensors t(slots_.size());
    t[0] = x;
    for (size_t i = 0; i < steps_.size(); ++i) {
      Stage::Forward f;
      const auto start = Clock::now();
      t[i + 1] = run(i, t, f);
      const std::chrono::duration<double> seconds = Clock::now() - start;
      least[i] = std::min(least[i], seconds.count());
    }
  }
  return least;
}

}  // namespace compact
