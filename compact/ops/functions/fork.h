// SPDX-License-Identifier: Apache-2.0
// One tensor that two operations read, as an autograd node of its own, so that its two gradients
// are added in place wherever that may be: the engine adds them in place on the CPU and out of
// place on the meta device, and a plan would be too high by one gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace compact {

// Two views of `t`. Its gradient is the sum of theirs, the bits those of the engine's own sum,
// written into one of the two where no other tensor shares its memory. Where gradients are off or
// `t` requires none, the tensor itself twice.
std::pair<at::Tensor, at::Tensor> fork(const at::Tensor& t);

}  // namespace compact
