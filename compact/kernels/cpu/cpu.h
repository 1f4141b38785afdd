// SPDX-License-Identifier: Apache-2.0
// The CPU backend: vectorised and threaded through Launch::parallel_for.
#pragma once

#include "compact/kernels/kernels.h"

namespace compact::kernels::cpu {

COMPACT_KERNELS(COMPACT_KERNEL_DECLARATION)

}  // namespace compact::kernels::cpu
