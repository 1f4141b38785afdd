// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/recipe.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "compact/base/check.h"
#include "compact/codecs/launch.h"
#include "compact/ops/autograd.h"
#include "compact/ops/policy.h"

namespace compact {

std::vector<Weight> weights_of(std::span<const Parameter* const> parameters) {
  std::vector<Weight> all;
  all.reserve(parameters.size());
  for (const Parameter* p : parameters) {
    all.push_back({p->weight.detach(), p->carrier, p->carrier ? p->carrier->draw : 0});
  }
  return all;
}

std::string Slot::treatment_name() const {
  switch (storage) {
    case Storage::kKeep:
      return "keep";
    case Storage::kRecompute:
      return "recompute";
    case Storage::kSketch:
      return "sketch";
    case Storage::kCodec:
      return treatment;
  }
  return "";
}

bool Recipe::Step::reads_input(const Wanted& wanted) const {
  if (!stage || sketch || !stage->needs().input) return false;
  return !stage->reads_input_for_weight() || wanted[1 + static_cast<size_t>(first_parameter)];
}

void Recipe::add(Step step, Slot output) {
  step.first_parameter = parameters;
  if (step.stage) step.parameters = static_cast<int>(step.stage->parameters().size());
  parameters += step.parameters;
  steps.push_back(std::move(step));
  slots.push_back(std::move(output));
}

std::vector<bool> Recipe::gradients(const Wanted& wanted) const {
  std::vector<bool> made(slots.size());
  made[0] = wanted[0];
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    const auto first = wanted.begin() + 1 + step.first_parameter;
    made[i + 1] = made[step.input] || (step.other >= 0 && made[step.other]) ||
                  std::find(first, first + step.parameters, true) != first + step.parameters;
  }
  return made;
}

Recipe::Demand Recipe::demand(const Wanted& wanted) const {
  const std::vector<bool> made = gradients(wanted);
  Demand d{std::vector<bool>(slots.size()), std::vector<bool>(steps.size()),
           std::vector<bool>(steps.size())};
  const auto need = [&](const auto& self, int tensor) -> void {
    if (stored(tensor)) {
      d.tensors[tensor] = true;
      return;
    }
    const Step& step = steps[tensor - 1];
    d.again[tensor - 1] = true;
    self(self, step.input);
    if (step.other >= 0) self(self, step.other);
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].stage || !made[i + 1]) continue;
    d.back[i] = true;
    if (steps[i].stage->needs().output) need(need, static_cast<int>(i) + 1);
    if (steps[i].reads_input(wanted)) need(need, steps[i].input);
  }
  return d;
}

bool Recipe::read_in_backward(int tensor) const {
  const Wanted wanted = everything();
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].input == tensor && steps[i].reads_input(wanted)) return true;
    if (static_cast<int>(i) + 1 == tensor && steps[i].stage && steps[i].stage->needs().output) {
      return true;
    }
  }
  return false;
}

bool Recipe::stored(int tensor) const {
  const Slot& slot = slots[tensor];
  return !slot.name.empty() && (slot.storage == Storage::kKeep || slot.storage == Storage::kCodec);
}

bool Recipe::rebuilt(int tensor) const {
  if (stored(tensor)) return true;
  if (tensor == 0) return false;
  const Step& step = steps[tensor - 1];
  return rebuilt(step.input) && (step.other < 0 || rebuilt(step.other));
}

bool Recipe::can_be_rebuilt(int tensor) const {
  if (tensor == 0) return false;
  const auto there = [&](int t) { return t < 0 || !slots[t].name.empty() || can_be_rebuilt(t); };
  return there(steps[tensor - 1].input) && there(steps[tensor - 1].other);
}

bool Recipe::rounded(int tensor) const {
  const Slot& slot = slots[tensor];
  if (!slot.name.empty() && slot.storage == Storage::kCodec)
    return content_of(slot.treatment) == Content::kRounded;
  if (stored(tensor) || tensor == 0) return false;
  const Step& step = steps[tensor - 1];
  return rounded(step.input) || (step.other >= 0 && rounded(step.other));
}

void Recipe::finish() {
  const int count = static_cast<int>(slots.size());
  const auto check_sketch = [](bool possible, const Slot& slot) {
    COMPACT_CHECK(
        possible, "slot `", slot.name,
        "` = sketch: its reader must be a linear whose gradient is `project`; set that, or "
        "keep or recompute the slot");
  };
  for (const Step& step : steps) check_sketch(step.side.storage != Storage::kSketch, step.side);
  for (int t = 1; t < count; ++t) {
    if (slots[t].storage != Storage::kSketch) continue;
    bool read = false;
    for (Step& step : steps) {
      if (!step.stage || step.input != t) continue;  // no backward of a sum reads what it adds
      check_sketch(step.stage->sketch_width() > 0, slots[t]);
      read = step.sketch = true;
    }
    check_sketch(read, slots[t]);
  }
  const auto check_values = [](const Slot& slot) {
    COMPACT_CHECK(slot.storage != Storage::kCodec || content_of(slot.treatment) != Content::kSigns,
                  "slot `", slot.name, "` = ", slot.treatment,
                  ": the operation behind it reads values, not signs");
  };
  for (const Step& step : steps) {
    if (step.stage && step.stage->needs().input) check_values(slots[step.input]);
    check_values(step.side);
  }
  for (int t = 0; t < count; ++t) {
    COMPACT_CHECK(!read_in_backward(t) || stored(t) || rebuilt(t), "slot `", slots[t].name,
                  "` = recompute: it is made of what the segment before gives, which is not kept; "
                  "keep it or give it a codec");
  }
  last_reader.assign(count, -1);
  std::vector<int> readers(count, 0);
  for (int i = 0; i < static_cast<int>(steps.size()); ++i) {
    for (const int t : {steps[i].input, steps[i].other}) {
      if (t < 0) continue;
      last_reader[t] = i;
      ++readers[t];
    }
  }
  overwritable.assign(count, false);
  for (int t = 0; t < count; ++t) {
    overwritable[t] = readers[t] == 1 && !stored(t) && !read_in_backward(t);
    COMPACT_CHECK(
        t == 0 || slots[t].name.empty() || !stored(t) || t + 1 == count || read_in_backward(t),
        "slot `", slots[t].name, "` is never read by a backward pass");
  }
}

at::Tensor Recipe::run(size_t i, Tensors& t, Weights weights, Stage::Forward& f) const {
  const Step& step = steps[i];
  f.overwrite = overwritable[step.input] && (step.input > 0 || alone(t[0]));
  // Where it may be overwritten the only reference is passed on.
  f.input = f.overwrite ? std::move(t[step.input]) : t[step.input];
  f.weights = step.of(weights);
  if (step.stage) return step.stage->forward(f);
  check_like(name.c_str(), f.input, {{"the other term of a sum", t[step.other]}});
  return f.overwrite ? f.input.add_(t[step.other]) : f.input + t[step.other];
}

}  // namespace compact
