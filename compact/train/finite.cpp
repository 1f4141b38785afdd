// SPDX-License-Identifier: Apache-2.0
#include "compact/train/finite.h"

#include <ATen/ATen.h>

#include <cmath>

#include "compact/base/check.h"
#include "compact/config/exit_codes.h"

namespace compact {

double finite_loss(const at::Tensor& loss, int64_t step) {
  const double value = loss.item<double>();
  if (std::isfinite(value)) return value;
  throw NonFiniteError(cat("step ", step, ": the loss is ", std::isnan(value) ? "nan" : cat(value),
                           "; stopped before the update"));
}

double finite_norm(const at::Tensor& norm, const Optimizer& optimizer, int64_t step, bool updated) {
  const double value = norm.item<double>();
  if (std::isfinite(value)) return value;
  throw NonFiniteError(cat("step ", step, ": the gradient of ", optimizer.nonfinite(norm),
                           updated ? " is not finite; stopped, but parameters with release=true "
                                     "have taken theirs: go on from a checkpoint"
                                   : " is not finite; stopped before the update"));
}

}  // namespace compact
