// SPDX-License-Identifier: Apache-2.0
// Where weights are that are not there all the time: with another process (ZeRO's stage 3), in
// codes, in another type. What reads them fetches them before and lets go of them after.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace compact {

// Weights come and go by groups, which have numbers: those of a segment together, or, in a home
// that makes them of what an earlier one brings, each by itself. Where there are several processes,
// all make the same calls in the same order.
class WeightHome {
 public:
  virtual ~WeightHome() = default;
  // The weights of a group are there when it returns, until as many release() as fetch(). The next
  // group's, in the direction of the pass, may be on their way.
  virtual void fetch(int group, bool backward) = 0;
  virtual void release(int group) = 0;
  // What it holds of a weight that is away, in tensors with storages of their own. A home before
  // this one may take their memory until it fetches them.
  virtual std::vector<at::Tensor> held(const at::Tensor& /*weight*/) const { return {}; }
};

struct WeightPlace {
  std::shared_ptr<WeightHome> home;
  int group = 0;
  bool operator==(const WeightPlace&) const = default;
};

// The memory of a tensor with a storage of its own goes and comes. Meanwhile the tensor stays, with
// the address of nothing: who reads it gets no old numbers.
void take_memory(const at::Tensor& t);
void give_memory(const at::Tensor& t);

}  // namespace compact
