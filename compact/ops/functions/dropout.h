// SPDX-License-Identifier: Apache-2.0
// Dropout whose mask is drawn again from a key wherever it is needed, and kept nowhere. Srivastava
// et al. 2014.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace compact {

// x with each element zeroed with probability p, 0 <= p < 1 (rounded to multiples of 2^-16), and
// divided by 1 - p else; in the memory of x where no other tensor shares it. Its adjoint is the
// same on gradients. Contiguous float32 or bfloat16.
at::Tensor dropped(at::Tensor x, double p, uint64_t key);

// The same for a tensor whose gradient is wanted: autograd keeps the key and nothing else.
at::Tensor autograd_dropout(const at::Tensor& x, double p, uint64_t key);

// The same into another tensor of the same type and sizes, which may be x.
void drop_into(const at::Tensor& y, const at::Tensor& x, double p, uint64_t key);

}  // namespace compact
