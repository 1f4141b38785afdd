// SPDX-License-Identifier: Apache-2.0
// Random tensors that follow from a key: independent of threads and devices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "compact/kernels/kernels.h"

namespace compact {

// Fills a contiguous f32 or bf16 tensor with independent entries of this distribution times scale.
void draw(const at::Tensor& out, kernels::Distribution distribution, double scale, uint64_t key);

}  // namespace compact
