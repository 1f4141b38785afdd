// SPDX-License-Identifier: Apache-2.0
// The kernels of the CUDA backend: see kernels.h for what each computes.
#pragma once

#include "compact/kernels/cuda/common.cuh"

namespace compact::kernels::cuda {

COMPACT_KERNELS(COMPACT_KERNEL_DECLARATION)

}  // namespace compact::kernels::cuda
