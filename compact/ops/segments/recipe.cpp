// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/segments/recipe.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "compact/base/check.h"
#include "compact/codecs/launch.h"
#include "compact/ops/autograd/autograd.h"
#include "compact/ops/policy/policy.h"

namespace compact {
namespace {

// Calls enter(t) on `tensor` and, where that returns true, on the tensors that t is made of, and so
// on: each once, those made later first.
template <class F>
void for_sources(const Recipe& recipe, int tensor, F enter) {
  std::vector<bool> reached(static_cast<size_t>(tensor) + 1);
  reached[tensor] = true;
  for (int t = tensor; t >= 0; --t) {
    if (!reached[t] || !enter(t) || t == 0) continue;
    const Recipe::Step& step = recipe.steps[t - 1];
    reached[step.input] = true;
    if (step.other >= 0) reached[step.other] = true;
  }
}

}  // namespace

Slot slot_of(const Policy& policy, const std::string& name, Role role, int64_t width) {
  Slot slot{.name = name, .width = width, .treatment = policy.slot(name, role), .role = role};
  COMPACT_CHECK(slot.treatment.storage() != Storage::kChunk, "treatment `", slot.treatment.text(),
                "` is for loss.logits only");
  return slot;
}

bool Recipe::Step::reads_input(const Wanted& wanted) const {
  if (!stage || sketch || !stage->needs().input) return false;
  return stage->reads_input_for() == 0 || wants_matrix(wanted);
}

bool Recipe::Step::wants_matrix(const Wanted& wanted) const {
  const auto first = wanted.begin() + 1 + first_parameter;
  const auto last = first + std::max(1, stage->reads_input_for());
  return std::find(first, last, true) != last;
}

void Recipe::add(Step step, Slot output) {
  const auto check_there = [&](int tensor) {
    const int last = static_cast<int>(slots.size()) - 1;
    COMPACT_CHECK(tensor >= 0 && tensor <= last, "[segment] `", name, "` has tensors 0 to ", last,
                  ", not ", tensor);
  };
  check_there(step.input);
  if (!step.stage) check_there(step.other);
  finished = false;
  step.first_parameter = parameters;
  if (step.stage) step.parameters = step.stage->parameters();
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
  const auto need = [&](int tensor) {
    for_sources(*this, tensor, [&](int t) {
      if (stored(t)) {
        d.tensors[t] = true;
      } else {
        d.again[t - 1] = true;
      }
      return !stored(t);
    });
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].stage || !made[i + 1]) continue;
    d.back[i] = true;
    if (steps[i].stage->needs().output) need(static_cast<int>(i) + 1);
    if (reads_input(static_cast<int>(i), wanted)) need(steps[i].input);
  }
  return d;
}

bool Recipe::read_in_backward(int tensor) const {
  const Wanted wanted = everything();
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].input == tensor && reads_input(static_cast<int>(i), wanted)) return true;
    if (static_cast<int>(i) + 1 == tensor && steps[i].stage && steps[i].stage->needs().output) {
      return true;
    }
  }
  return false;
}

bool Recipe::stored(int tensor) const {
  const Slot& slot = slots[tensor];
  const Storage storage = slot.treatment.storage();
  return !slot.name.empty() && (storage == Storage::kKeep || storage == Storage::kCodec);
}

bool Recipe::rebuilt(int tensor) const {
  bool all = true;
  for_sources(*this, tensor, [&](int t) {
    all &= t > 0 || stored(t);
    return !stored(t);
  });
  return all;
}

bool Recipe::can_be_rebuilt(int tensor) const {
  bool all = tensor > 0;
  for_sources(*this, tensor, [&](int t) {
    if (t < tensor && !slots[t].name.empty()) return false;
    all &= t > 0;
    return true;
  });
  return all;
}

bool Recipe::rounded(int tensor) const {
  bool any = false;
  for_sources(*this, tensor, [&](int t) {
    any |= content(t) == Content::kRounded;
    return !stored(t);
  });
  return any;
}

Content Recipe::content(int tensor) const {
  const Slot& slot = slots[tensor];
  return slot.name.empty() ? Content::kExact : slot.treatment.content();
}

void Recipe::fit_codecs() {
  // How each stored tensor is read: its values; only its signs; or, without rounding, to rebuild a
  // tensor of which only the signs are read.
  std::vector<bool> values(slots.size()), signs(slots.size()), exact(slots.size());
  const auto read = [&](int tensor, bool only_signs) {
    for_sources(*this, tensor, [&](int t) {
      if (stored(t)) (!only_signs ? values : t == tensor ? signs : exact)[t] = true;
      return !stored(t);
    });
  };
  const auto check = [](bool possible, const Slot& slot, const char* why) {
    COMPACT_CHECK(possible, "slot `", slot.name, "` = ", slot.treatment.text(), ": ", why);
  };
  constexpr const char* kReadsValues = "the operation after it reads values, not signs";
  const Wanted wanted = everything();
  for (int i = 0; i < static_cast<int>(steps.size()); ++i) {
    const Step& step = steps[i];
    if (step.reads_input(wanted)) read(step.input, false);
    if (step.stage && stored(step.input)) {
      Slot& slot = slots[step.input];
      if (step.stage->reads_channels()) slot.treatment = slot.treatment.by_channels();
      if (const int64_t row = step.stage->reads_rows(slot.width)) {
        slot.treatment = slot.treatment.by_rows(row, slot.width);
      }
    }
    if (step.stage && step.stage->needs().output) read(i + 1, step.stage->reads_signs());
    check(step.side.treatment.content() != Content::kSigns, step.side, kReadsValues);
  }
  for (int t = 0; t < static_cast<int>(slots.size()); ++t) {
    Slot& slot = slots[t];
    if (signs[t] && content(t) == Content::kRounded) {
      slot.treatment =
          values[t] ? slot.treatment.with_signs().value_or(slot.treatment) : Treatment::of_signs();
    }
    check(content(t) != Content::kSigns || !(values[t] || exact[t]), slot, kReadsValues);
    const bool lost = signs[t] && !slot.treatment.with_signs();
    check(content(t) != Content::kRounded || !(exact[t] || lost), slot,
          "a ReLU without a mask reads signs, which this does not keep");
  }
}

const Recipe::Tiles* Recipe::tiles_of(int i) const {
  for (const Tiles& each : tiles) {
    if (i >= each.first && i <= each.last) return &each;
  }
  return nullptr;
}

bool Recipe::reads_input(int i, const Wanted& wanted) const {
  const Step& step = steps[static_cast<size_t>(i)];
  return step.reads_input(wanted) || (tiles_of(i) && step.stage->leaves_extras());
}

void Recipe::fit_tiles() {
  tiles.clear();
  const auto by_token = [&](int i) {
    const Step& step = steps[static_cast<size_t>(i)];
    return step.stage && step.stage->by_token() &&
           slots[static_cast<size_t>(step.input)].treatment.storage() != Storage::kSketch;
  };
  // One reader, the next step.
  const auto in_chain = [&](int tensor) {
    int readers = 0;
    for (const Step& step : steps) readers += (step.input == tensor) + (step.other == tensor);
    return readers == 1 && tensor < static_cast<int>(steps.size()) &&
           steps[static_cast<size_t>(tensor)].input == tensor;
  };
  for (int t = 1; t < static_cast<int>(slots.size()); ++t) {
    Slot& slot = slots[static_cast<size_t>(t)];
    const int64_t tokens = slot.treatment.tile();
    if (slot.name.empty() || tokens == 0) continue;
    if (!in_chain(t) || !by_token(t - 1) || !by_token(t)) {
      slot.treatment = Treatment::parse("recompute");
    } else if (tiles.empty() || tiles.back().last != t - 1) {
      tiles.push_back({.first = t - 1, .last = t, .tokens = tokens});
    } else {
      COMPACT_CHECK(tokens == tiles.back().tokens, "slot `", slot.name,
                    "` = ", slot.treatment.text(), ": `", slots[static_cast<size_t>(t) - 1].name,
                    "`, of which it is made, has tiles of ", tiles.back().tokens,
                    " tokens; give both one size");
      tiles.back().last = t;
    }
  }
  for (int i = 0; i < static_cast<int>(steps.size()); ++i) {
    Treatment& side = steps[static_cast<size_t>(i)].side.treatment;
    if (side.tile() > 0 && !tiles_of(i)) side = Treatment::parse("recompute");
  }
  for (const Tiles& each : tiles) {
    for (int i = each.first; i <= each.last; ++i) {
      const Slot& side = steps[static_cast<size_t>(i)].side;
      COMPACT_CHECK(side.name.empty() || side.treatment.storage() == Storage::kRecompute, "slot `",
                    side.name, "` = ", side.treatment.text(), ": it is made together with `",
                    slots[static_cast<size_t>(i) + 1].name, "` in tiles, and can only be `",
                    "tile` or `recompute`");
    }
  }
}

void Recipe::fit_stages() {
  std::vector<bool> values(slots.size());  // stored tensors whose values are read
  const auto read = [&](int tensor) {
    for_sources(*this, tensor, [&](int t) {
      if (stored(t)) values[t] = true;
      return !stored(t);
    });
  };
  const Wanted wanted = everything();
  for (size_t i = 0; i < steps.size(); ++i) {
    Step& step = steps[i];
    step.stage = step.added;
    if (step.reads_input(wanted)) read(step.input);
    if (step.stage && step.stage->needs().output && !step.stage->reads_signs()) {
      read(static_cast<int>(i) + 1);
    }
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    Step& step = steps[i];
    if (!step.stage || !step.stage->reads_signs()) continue;
    const Treatment& how = slots[i + 1].treatment;
    // A tensor rebuilt from a rounded one could have other signs.
    const bool unsure = how.storage() == Storage::kRecompute && rounded(step.input);
    const bool lost = how.content() == Content::kRounded && !how.with_signs() && values[i + 1];
    if (unsure || lost) step.stage = step.stage->keeping_signs();
  }
}

void Recipe::finish() {
  COMPACT_CHECK(slots[0].name.empty() || stored(0), "slot `", slots[0].name,
                "` is a segment's input and can only be `keep` or a codec: everything else is "
                "rebuilt from it");
  const int count = static_cast<int>(slots.size());
  const auto check_sketch = [](bool possible, const Slot& slot) {
    COMPACT_CHECK(
        possible, "slot `", slot.name,
        "` = sketch: its reader must be a linear whose gradient is `project`; set that, or "
        "keep or recompute the slot");
  };
  fit_tiles();
  fit_stages();
  for (const Step& step : steps)
    check_sketch(step.side.treatment.storage() != Storage::kSketch, step.side);
  for (int t = 1; t < count; ++t) {
    if (slots[t].treatment.storage() != Storage::kSketch) continue;
    bool read = false;
    for (Step& step : steps) {
      if (!step.stage || step.input != t) continue;  // a sum's backward reads nothing
      check_sketch(step.stage->sketch_width() > 0, slots[t]);
      read = step.sketch = true;
    }
    check_sketch(read, slots[t]);
  }
  fit_codecs();
  for (int t = 0; t < count; ++t) {
    COMPACT_CHECK(
        !read_in_backward(t) || stored(t) || rebuilt(t), "slot `", slots[t].name,
        "` = recompute: it is made from the output of the segment before, which is not kept; "
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
    COMPACT_CHECK(readers[t] > 0 || t + 1 == count, "[segment] `", name, "`: tensor ", t,
                  " is read by no stage and is not what the segment gives");
  }
  finished = true;
}

Stage::Backward Recipe::backward_of(int i, const Wanted& wanted, const std::vector<bool>& made,
                                    Weights weights) const {
  const Step& step = steps[static_cast<size_t>(i)];
  Stage::Backward b;
  b.weights = step.weights_of(weights);
  b.want_input = made[static_cast<size_t>(step.input)];
  const auto first = wanted.begin() + 1 + step.first_parameter;
  b.want_parameters.assign(first, first + step.parameters);
  b.gparameters.resize(static_cast<size_t>(step.parameters));
  return b;
}

at::Tensor Recipe::run(size_t i, Tensors& t, Weights weights, Stage::Forward& f) const {
  const Step& step = steps[i];
  f.overwrite = overwritable[step.input] &&
                (step.input > 0 || (alone(t[0]) && t[0].is_non_overlapping_and_dense()));
  // Where it may be overwritten the only reference is passed on.
  f.input = f.overwrite ? std::move(t[step.input]) : t[step.input];
  f.weights = step.weights_of(weights);
  COMPACT_CHECK(!f.sketch || f.weights[0].carrier, "slot `", slots[step.input].name,
                "` = sketch: the weight after it has no projection");
  if (step.stage) return step.stage->forward(f);
  const at::Tensor& other = t[step.other];
  const bool mixed = f.pass.products && other.scalar_type() != f.input.scalar_type();
  check_like(name.c_str(), f.input, {{"the other term of a sum", other}},
             mixed ? other.scalar_type() : f.input.scalar_type());
  return f.overwrite && !mixed ? f.input.add_(other) : f.input + other;
}

}  // namespace compact
