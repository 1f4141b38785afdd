// SPDX-License-Identifier: Apache-2.0
// How a tensor that autograd saves may be held: what the policy says of it, and what its
// operation's backward pass reads of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "compact/codecs/code_rows.h"
#include "compact/ops/policy/policy.h"
#include "compact/ops/policy/role.h"
#include "compact/ops/scopes/op_names.h"
#include "compact/ops/scopes/saved_tensors.h"

namespace compact {

// How a backward pass reads a tensor.
enum class Reads : uint8_t {
  kShape,   // sizes and strides
  kSigns,   // which side of 0 its elements are on
  kRelu,    // the same, of a ReLU's result, whose values the next operation reads
  kPlaces,  // integers of a range that is known
  kNear,    // values, linearly or smoothly: rounded ones will do
  // The same, but the derivative shrinks where that of a later logarithm or quotient grows; they
  // cancel only if both read the same values: rounded ones only where another operation reads them.
  kNearBeside,
  kExact,  // the values
  kLater,  // saved before it is filled (rrelu's noise): must not be read at save time
};

struct Holding {
  Treatment how;  // codecs, or keep
  Reads reads = Reads::kExact;
  Role role = Role::kNone;
  // Where there are several: the operation divides by a scale of each of these rows of the tensor's
  // memory (of a copy where the tensor is not dense), and no group of codes may have values of two.
  CodeRows apart;
  std::vector<CodedDimension> dimensions;  // of the tensor, that say so; none: it is not divided
  bool if_squared = false;  // only where another operation reads the tensor's squares: a norm
  // The policy asks for codes that round, but the operation reads exact values.
  bool refused = false;
};

// The treatment whose groups of codes lie in such rows of [outer, rows, inner], unless it says
// itself what they run along; the same where groups end with them anyway.
Treatment by_rows(const Treatment& how, const CodeRows& apart);

// How to hold `t`, which `op` (null: unknown) saves as its inputs of these bits, or, where they are
// 0, as its result. `again`: a checkpoint saves it, to compute from it a second time. Throws
// InputError where the policy names a treatment of segments.
Holding holding_of(const Policy& policy, const SavedTensorOptions& options, const RunningOp* op,
                   const at::Tensor& t, const std::string& name, uint32_t inputs, bool again);

}  // namespace compact
