// SPDX-License-Identifier: Apache-2.0
// What the CUDA runtime says of a GPU.
#pragma once

#include "compact/kernels/gpu.h"

namespace compact::kernels {

std::optional<Gpu> cuda_gpu(int index);  // nullopt: there is none of this number

}  // namespace compact::kernels
