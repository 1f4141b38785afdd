// SPDX-License-Identifier: Apache-2.0
// A parameter as one forward pass is given it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compact/codecs/parameter.h"

namespace compact {

// The backward pass of a forward pass reads the value that the forward pass read, whatever became
// of the model's own.
struct Weight {
  // A tensor of anybody's, which the gradient goes to.
  Weight(const at::Tensor& tensor) : leaf(tensor), value(tensor.detach()) {}
  // A parameter of a model, whose carrier takes the gradient where it has one.
  Weight(const Parameter& p)
      : leaf(p.leaf()),
        value(p.weight.detach()),
        carrier(p.carrier),
        draw(p.carrier ? p.carrier->draw : 0) {}

  at::Tensor leaf;                         // where autograd leads the gradient; not kept by graphs
  at::Tensor value;                        // without a graph
  std::shared_ptr<const Carrier> carrier;  // null: full gradient
  int64_t draw = 0;                        // of the carrier's projections
};
using Weights = std::span<const Weight>;

// As they are now.
inline std::vector<Weight> weights_of(std::span<const Parameter* const> parameters) {
  std::vector<Weight> all;
  all.reserve(parameters.size());
  for (const Parameter* p : parameters) all.emplace_back(*p);
  return all;
}

}  // namespace compact
