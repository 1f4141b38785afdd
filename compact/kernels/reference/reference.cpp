// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/reference/reference.h"

namespace compact::kernels {

#define X(name, Args) reference::name,
extern const Backend reference_backend = {"reference", Device::kCpu, COMPACT_KERNELS(X)};
#undef X

}  // namespace compact::kernels
