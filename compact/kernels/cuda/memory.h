// SPDX-License-Identifier: Apache-2.0
// Plain device memory for the kernels' self-check.
#pragma once

#include "compact/kernels/self_check.h"

namespace compact::kernels {

// Throws std::runtime_error where the CUDA runtime reports an error.
Memory cuda_memory();

}  // namespace compact::kernels
