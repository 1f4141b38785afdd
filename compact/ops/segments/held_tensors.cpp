// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/segments/held_tensors_impl.h"
#include "compact/ops/segments/segment.h"

namespace compact {

std::vector<Encoded*> HeldTensors::codes() {
  std::vector<Encoded*> all;
  const auto add = [&](Encoded& e) {
    if (e.defined()) all.push_back(&e);
  };
  for (size_t i = encoded_sides.size(); i-- > 0;) {
    add(encoded[i + 1]);
    add(encoded_sides[i]);
  }
  if (!encoded.empty()) add(encoded[0]);
  return all;
}

std::vector<SlotBytes> HeldTensors::rows(const Recipe& recipe, const std::vector<int64_t>& if_kept,
                                         const std::vector<int64_t>& sides_if_kept) const {
  std::vector<SlotBytes> all;
  std::vector<int64_t> sketches(recipe.slots.size());
  int64_t small = 0;
  for (size_t i = 0; i < recipe.steps.size(); ++i) {
    (recipe.steps[i].sketch ? sketches[recipe.steps[i].input] : small) += bytes_of(extras[i]);
  }
  const auto row = [&](const Slot& slot, const at::Tensor& held, const Encoded& e, int64_t sketch,
                       int64_t whole) {
    if (slot.name.empty()) return;
    const int64_t stored = held.defined() ? static_cast<int64_t>(held.nbytes()) : e.bytes();
    all.push_back({slot.name, slot.treatment.text(), stored + sketch, whole});
  };
  row(recipe.slots[0], tensors[0], encoded[0], sketches[0], if_kept[0]);
  for (size_t i = 0; i < recipe.steps.size(); ++i) {
    row(recipe.steps[i].side, sides[i], encoded_sides[i], 0, sides_if_kept[i]);
    row(recipe.slots[i + 1], tensors[i + 1], encoded[i + 1], sketches[i + 1], if_kept[i + 1]);
  }
  if (small) all.push_back({recipe.name + ".extras", "keep", small, small});
  return all;
}

}  // namespace compact
