// SPDX-License-Identifier: Apache-2.0
// A parameter as a forward pass reads it.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compact/codecs/parameter.h"

namespace compact {

// The backward pass reads the value that the forward pass read, even if the model has another
// since.
struct Weight {
  // Any leaf tensor; autograd sends the gradient to it.
  Weight(const at::Tensor& tensor) : leaf(tensor), source(tensor), value(tensor.detach()) {}
  // A parameter of a model, whose carrier takes the gradient where it has one.
  Weight(const Parameter& p)
      : leaf(p.leaf()),
        source(p.weight),
        value(p.weight.detach()),
        carrier(p.carrier),
        draw(p.carrier ? p.carrier->draw : 0),
        places(p.places) {}

  at::Tensor leaf;                         // where autograd sends the gradient; not kept by graphs
  at::Tensor source;                       // what the value was read from; not kept, either
  at::Tensor value;                        // without a graph
  std::shared_ptr<const Carrier> carrier;  // null: full gradient
  int64_t draw = 0;                        // of the carrier's projections
  std::vector<WeightPlace> places = {};    // empty: the value is always in memory
};
using Weights = std::span<const Weight>;

// While it lives, the values of these weights are in memory: of those that products fetch, or of
// all others.
class FetchedWeights {
 public:
  FetchedWeights(Weights weights, bool backward, bool by_product = false) : FetchedWeights() {
    for (const Weight& w : weights) {
      for (const WeightPlace& place : w.places) {
        if (place.by_product != by_product) continue;
        if (std::ranges::find(fetched_, place) != fetched_.end()) continue;
        place.home->fetch(place.group, backward);
        fetched_.push_back(place);
      }
    }
  }
  FetchedWeights(const FetchedWeights&) = delete;
  FetchedWeights& operator=(const FetchedWeights&) = delete;
  ~FetchedWeights() {
    for (auto p = fetched_.rbegin(); p != fetched_.rend(); ++p) p->home->release(p->group);
  }

 private:
  FetchedWeights() = default;  // so that weights fetched before one that throws are released

  std::vector<WeightPlace> fetched_;
};

// The weights as they are now.
inline std::vector<Weight> weights_of(std::span<const Parameter* const> parameters) {
  std::vector<Weight> all;
  all.reserve(parameters.size());
  for (const Parameter* p : parameters) all.emplace_back(*p);
  return all;
}

}  // namespace compact
