// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/segments/segment.h"

#include "compact/base/check.h"
#include "compact/ops/policy/policy.h"
#include "compact/ops/segments/segment_node_impl.h"

namespace compact {

Segment::Segment(std::string name, Slot input) : recipe_(std::make_shared<Recipe>()) {
  recipe_->name = std::move(name);
  recipe_->slots.push_back(std::move(input));
}

Recipe& Segment::change() {
  if (recipe_.use_count() > 1) recipe_ = std::make_shared<Recipe>(*recipe_);
  return *recipe_;
}

int Segment::add(std::shared_ptr<const Stage> stage, Slot output, Slot side) {
  const int made = add_branch(tensors() - 1, std::move(stage), std::move(output));
  recipe_->steps.back().side = std::move(side);
  return made;
}

int Segment::add_branch(int input, std::shared_ptr<const Stage> stage, Slot output) {
  change().add({.stage = std::move(stage), .input = input}, std::move(output));
  return tensors() - 1;
}

int Segment::add_residual(int other, Slot output) {
  change().add({.stage = nullptr, .input = tensors() - 1, .other = other}, std::move(output));
  return tensors() - 1;
}

void Segment::finish() { change().finish(); }

std::vector<Slot> Segment::codec_slots() const {
  std::vector<Slot> found;
  const auto add = [&](const Slot& slot) {
    if (!slot.name.empty() && slot.treatment.codec()) found.push_back(slot);
  };
  for (const Slot& slot : recipe_->slots) add(slot);
  for (const Recipe::Step& step : recipe_->steps) add(step.side);
  return found;
}

void Segment::set_codec(const std::string& slot, const Treatment& treatment) {
  COMPACT_CHECK(treatment.codec(), "slot `", slot, "` = ", treatment.text(),
                ": what a codec holds can be given another codec only");
  bool found = false;
  const auto set = [&](Slot& s) {
    if (s.name != slot || !s.treatment.codec()) return;
    s.treatment = treatment;
    found = true;
  };
  auto changed = std::make_shared<Recipe>(*recipe_);
  for (Slot& s : changed->slots) set(s);
  for (Recipe::Step& step : changed->steps) set(step.side);
  COMPACT_CHECK(found, "no codec holds slot `", slot, "`");
  changed->fit_codecs();
  recipe_ = std::move(changed);
}

void Segment::set_codecs(const Policy& policy) {
  for (const Slot& slot : codec_slots()) {
    if (policy.names(PolicyKind::kSlot, slot.name, slot.role)) {
      set_codec(slot.name, policy.slot(slot.name, slot.role));
    }
  }
}

Segment Segment::treated(const Policy& policy) const {
  auto recipe = std::make_shared<Recipe>(*recipe_);
  const auto treat = [&](Slot& slot) {
    if (!slot.name.empty()) slot = slot_of(policy, slot.name, slot.role, slot.width);
  };
  for (Slot& slot : recipe->slots) treat(slot);
  for (Recipe::Step& step : recipe->steps) {
    treat(step.side);
    step.sketch = false;
  }
  recipe->finish();
  return Segment(std::move(recipe));
}

at::Tensor Segment::operator()(at::Tensor x, std::vector<Weight> weights, const SegmentPass& pass,
                               SegmentReport* report) const {
  if (pass.see) (*pass.see)(*this, x, weights, pass);
  return run_segment(recipe_, std::move(x), std::move(weights), pass, report);
}

}  // namespace compact
