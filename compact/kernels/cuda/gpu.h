// SPDX-License-Identifier: Apache-2.0
// The properties of a GPU that the CUDA runtime reports.
#pragma once

#include "compact/kernels/gpu.h"

namespace compact::kernels {

std::optional<Gpu> cuda_gpu(int index);  // nullopt: there is none of this number

}  // namespace compact::kernels
