// SPDX-License-Identifier: Apache-2.0
// torch's thread pool as the parallel_for of kernels.
#pragma once

#include <cstdint>

#include "compact/kernels/kernels.h"

namespace compact {

// Calls body on disjoint ranges that cover [0, n), each a multiple of `grain` long but the last.
void torch_parallel_for(int64_t n, int64_t grain, kernels::Launch::Body body);

}  // namespace compact
