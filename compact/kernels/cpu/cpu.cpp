// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/cpu/cpu.h"

namespace compact::kernels {

#define X(name, Args) cpu::name,
extern const Backend cpu_backend = {"cpu", Device::kCpu, COMPACT_KERNELS(X)};
#undef X

}  // namespace compact::kernels
