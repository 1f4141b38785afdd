// SPDX-License-Identifier: Apache-2.0
// How a tensor that autograd saves may be held: what the policy says of it, and what its
// operation's backward pass reads of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "compact/ops/policy/policy.h"
#include "compact/ops/scopes/op_names.h"
#include "compact/ops/scopes/saved_tensors.h"

namespace compact {

// Codecs, or keep. `op` saves the tensor, null where none is known; `result`: it made it. Throws
// InputError where the policy names a treatment of segments.
Treatment treatment_of(const Policy& policy, const SavedTensorOptions& options, const RunningOp* op,
                       const at::Tensor& t, const std::string& name, bool result);

}  // namespace compact
