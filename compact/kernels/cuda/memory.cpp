// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/cuda/memory.h"

#include <cuda_runtime_api.h>

#include <stdexcept>

#include "compact/base/check.h"

namespace compact::kernels {
namespace {

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    throw std::runtime_error(cat("[cuda] ", call, ": ", cudaGetErrorString(status)));
  }
}

}  // namespace

Memory cuda_memory() {
  return {.allocate =
              [](size_t bytes) {
                void* p = nullptr;
                check(cudaMalloc(&p, bytes), "cudaMalloc");
                return p;
              },
          .release = [](void* p) { (void)cudaFree(p); },
          .copy =
              [](void* to, const void* from, size_t bytes) {
                check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
                check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
              }};
}

}  // namespace compact::kernels
