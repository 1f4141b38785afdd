// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/cuda/gpu.h"

#include <cuda_runtime_api.h>

namespace compact::kernels {

std::optional<Gpu> cuda_gpu(int index) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) {
    (void)cudaGetLastError();
    return std::nullopt;
  }
  return Gpu{.name = properties.name,
             .capability = 10 * properties.major + properties.minor,
             .processors = properties.multiProcessorCount,
             .shared_memory = static_cast<int64_t>(properties.sharedMemPerBlockOptin)};
}

}  // namespace compact::kernels
