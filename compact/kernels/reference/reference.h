// SPDX-License-Identifier: Apache-2.0
// The reference backend: plain serial loops, the definition of correct. Nothing here is fast.
#pragma once

#include "compact/kernels/bfloat16.h"
#include "compact/kernels/dispatch.h"
#include "compact/kernels/kernels.h"

namespace compact::kernels::reference {

COMPACT_KERNELS(COMPACT_KERNEL_DECLARATION)

}  // namespace compact::kernels::reference
