// SPDX-License-Identifier: Apache-2.0
// What a segment's steps cost: for choosing which tensors to rebuild.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "compact/ops/segment.h"

namespace compact {

std::vector<std::string> Segment::treatable() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (!steps_[i].side.name.empty()) names.push_back(steps_[i].side.name);
    if (!slots_[i + 1].name.empty()) names.push_back(slots_[i + 1].name);
  }
  return names;
}

std::vector<std::string> Segment::named_slots() const {
  std::vector<std::string> names = treatable();
  if (!slots_[0].name.empty()) names.insert(names.begin(), slots_[0].name);
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
