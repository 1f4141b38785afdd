// SPDX-License-Identifier: Apache-2.0
// How a tensor that autograd saves may be held: what the policy says of it, and what its
// operation's backward pass reads of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "compact/ops/policy/policy.h"
#include "compact/ops/policy/role.h"
#include "compact/ops/scopes/op_names.h"
#include "compact/ops/scopes/saved_tensors.h"

namespace compact {

// What a backward pass reads of a tensor.
enum class Reads : uint8_t {
  kShape,   // sizes and strides
  kSigns,   // which side of 0 its elements are on
  kRelu,    // the same, of a ReLU's result, whose values the next operation reads
  kPlaces,  // integers of a range that is known
  kNear,    // values, linearly or smoothly: near ones do
  // The same, but it shrinks where a later logarithm or quotient grows, which makes up for it only
  // where both read the same: near values do where another operation reads those.
  kNearBeside,
  kExact,  // the values
  kLater,  // values that are not there yet when it is saved
};

struct Holding {
  Treatment how;  // codecs, or keep
  Reads reads = Reads::kExact;
  Role role = Role::kNone;
  // The policy would have it in codes that round, and the operation forbids it.
  bool refused = false;
};

// `op` saves the tensor, null where none is known, as the input(s) of these bits, or 0: as its
// result. `again`: not the tensor is read, but what is computed from it a second time. Throws
// InputError where the policy names a treatment of segments.
Holding holding_of(const Policy& policy, const SavedTensorOptions& options, const RunningOp* op,
                   const at::Tensor& t, const std::string& name, uint32_t inputs, bool again);

}  // namespace compact
