// SPDX-License-Identifier: Apache-2.0
// Recomputes results of fused attention from queries, keys and values as they are held. The
// backward pass makes attention's weights as exp(q k - l), l being the logsumexp that the forward
// pass saved. Where q and k were rounded and l was not, rows of weights no longer sum to 1, and
// gradients are off by the exponential of the scores' rounding error.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "compact/ops/scopes/op_names.h"
#include "compact/ops/scopes/saved_tensor_store.h"

namespace compact {

// One call of fused attention. Holds no graph; reads its tensors as note() says they are held.
class FusedAttention {
 public:
  explicit FusedAttention(const RunningOp& op);  // which has arguments

  // From now on the argument `t` that autograd saves is read from `held`. One tensor may be queries
  // and keys, saved twice and held in two ways.
  void note(const at::Tensor& t, const HeldTensor& held);
  // Whether the backward pass reads rounded queries or keys.
  bool rounds_scores() const;
  // Whether the result is the values, not the logarithms.
  bool is_values(const at::Tensor& result) const;
  // Whether a saved result can be recomputed: logarithms, and values where there is no dropout,
  // whose mask is drawn only once.
  bool can_make(const at::Tensor& result) const;
  // Recomputes values or logarithms from what is held. One run makes both; the other is kept for
  // the next call.
  at::Tensor make(bool values) const;

 private:
  c10::OperatorHandle op_;
  std::vector<c10::IValue> arguments_;  // None in the places of held tensors
  std::vector<HeldTensor> held_;        // by the places of arguments
  std::vector<size_t> by_name_;         // places in the order of the arguments' names
  std::vector<int64_t> versions_;       // of tensor arguments that are not held
  std::vector<int64_t> query_, value_;  // their sizes
  bool dropout_ = false;
  mutable std::mutex mutex_;
  mutable at::Tensor values_, logarithms_;
  mutable std::array<bool, 3> made_of_{};  // which of queries, keys and values were rounded
};

}  // namespace compact
