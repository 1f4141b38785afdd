// SPDX-License-Identifier: Apache-2.0
// Weights in another type than a model holds them in, for as long as a pass of their segment takes.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <vector>

#include "compact/codecs/weight_home.h"

namespace compact {

// The weights of one call of a segment. The backward pass casts again.
class CastWeights final : public WeightHome {
 public:
  explicit CastWeights(at::ScalarType type) : type_(type) {}
  // What the segment is to read; it has values between fetch() and release().
  at::Tensor add(const at::Tensor& source);

  void fetch(int segment, bool backward) override;
  void release(int segment) override;

 private:
  struct One {
    at::Tensor source, value;
  };
  at::ScalarType type_;
  std::mutex mutex_;
  std::vector<One> all_;
  int users_ = 0;
};

}  // namespace compact
