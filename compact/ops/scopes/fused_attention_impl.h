// SPDX-License-Identifier: Apache-2.0
// Results of fused attention that are made again from queries, keys and values as they are held.
// Its backward pass makes its weights as exp(q k - l), with the logarithms l of their sums that the
// forward pass saved. Where q and k were rounded and l was not, rows of weights no longer sum to 1,
// and gradients are off by the exponential of what rounding moved the scores by.
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

// One call. Holds no graph, and of its tensors what was noted of them.
class FusedAttention {
 public:
  explicit FusedAttention(const RunningOp& op);  // which has arguments

  // What is held of `t`, which autograd saves, is read in place of the argument that it is: one
  // tensor may be queries and keys, saved twice and held in two ways.
  void note(const at::Tensor& t, const HeldTensor& held);
  // Whether the backward pass reads rounded queries or keys.
  bool rounds_scores() const;
  // Whether the result is the values, not the logarithms.
  bool is_values(const at::Tensor& result) const;
  // Whether a result that is saved can be made again: logarithms, and values without dropout, whose
  // mask is drawn once.
  bool can_make(const at::Tensor& result) const;
  // Values or logarithms, of what is held. Both are made at once: the other is there for the next
  // call.
  at::Tensor make(bool values) const;

 private:
  c10::OperatorHandle op_;
  std::vector<c10::IValue> arguments_;  // none where it is held
  std::vector<HeldTensor> held_;        // by the argument's place
  std::vector<size_t> by_name_;         // places in the order of the arguments' names
  std::vector<int64_t> versions_;       // of the others
  std::vector<int64_t> query_, value_;  // their sizes
  bool dropout_ = false;
  mutable std::mutex mutex_;
  mutable at::Tensor values_, logarithms_;
  mutable std::array<bool, 3> made_of_{};  // which of queries, keys and values were rounded
};

}  // namespace compact
