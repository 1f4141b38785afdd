// SPDX-License-Identifier: Apache-2.0
// The tensors that the forward pass of a segment leaves for its backward pass.
#pragma once

#include <cstdint>
#include <vector>

#include "compact/ops/autograd/autograd.h"
#include "compact/ops/segments/recipe.h"

namespace compact {

struct SlotBytes;

// A backward pass copies it where another one may follow, else moves it away, so that no pass finds
// half of it.
struct HeldTensors {
  Tensors tensors;                              // undefined where not held as they are
  Tensors sides;                                // per step
  std::vector<Encoded> encoded, encoded_sides;  // where a codec holds them
  std::vector<Tensors> extras;                  // per step
  std::vector<Weight> weights;                  // without leaves and sources
  VersionCheck versions;
  SegmentPass pass;  // noise: of the segment

  // The encoded tensors, in the order in which a backward pass restores them.
  std::vector<Encoded*> codes();
  // The bytes held for each slot.
  std::vector<SlotBytes> rows(const Recipe& recipe, const std::vector<int64_t>& if_kept,
                              const std::vector<int64_t>& sides_if_kept) const;
};

}  // namespace compact
