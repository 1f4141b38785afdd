// SPDX-License-Identifier: Apache-2.0
// Weights in another type than a model holds them in, for as long as a pass of their segment takes.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <vector>

#include "compact/codecs/weight_home.h"

namespace compact {

// The weights of one call of a segment, each a group of its own. The backward pass casts again.
class CastWeights final : public WeightHome {
 public:
  explicit CastWeights(at::ScalarType type) : type_(type) {}
  // Adds a group; returns the tensor for the segment to read, which has values between fetch() and
  // release().
  at::Tensor add(const at::Tensor& source);
  int size() const { return static_cast<int>(all_.size()); }

  void fetch(int group, bool backward) override;
  void release(int group) override;

 private:
  struct One {
    at::Tensor source, value;
    int users = 0;
  };
  at::ScalarType type_;
  std::mutex mutex_;
  std::vector<One> all_;
};

}  // namespace compact
