// SPDX-License-Identifier: Apache-2.0
// Weights that are made for as long as they are read: of the ones that a model holds in another
// type, or by Python code, as of codes that another package holds.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <vector>

#include "compact/codecs/weight_home.h"

namespace compact {

// Whether Python code gives the values: dequantize() of the tensor, which has no memory, calls it.
inline bool is_provided(const at::Tensor& t) {
  return t.unsafeGetTensorImpl()->is_python_dispatch();
}

// The weights of one call of a segment, each a group of its own. The backward pass makes them
// again.
class MadeWeights final : public WeightHome {
 public:
  // Adds a group; returns the tensor for the segment to read, in the source's sizes and this type,
  // which has memory between fetch() and release().
  at::Tensor add(const at::Tensor& source, at::ScalarType type);
  int size() const { return static_cast<int>(all_.size()); }

  void fetch(int group, bool backward) override;
  void release(int group) override;

 private:
  struct One {
    at::Tensor source, value;
    int users = 0;
  };
  std::mutex mutex_;
  std::vector<One> all_;
};

}  // namespace compact
