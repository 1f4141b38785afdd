// SPDX-License-Identifier: Apache-2.0
// A run ends before an update with what is not finite.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "compact/optim/optimizer.h"

namespace compact {

// The loss of a micro-batch of update number `step`. Throws NonFiniteError.
double finite_loss(const at::Tensor& loss, int64_t step);
// The norm of the gradients of all parameters. Throws NonFiniteError that names one that is not;
// `updated`: some parameters have been updated with theirs.
double finite_norm(const at::Tensor& norm, const Optimizer& optimizer, int64_t step, bool updated);

}  // namespace compact
