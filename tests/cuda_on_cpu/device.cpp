// SPDX-License-Identifier: Apache-2.0
// The emulated device, in place of compact/kernels/cuda/{memory,gpu}.cpp: guards are watched.
#include <stdexcept>

#include "card.h"
#include "compact/base/check.h"
#include "compact/kernels/cuda/gpu.h"
#include "compact/kernels/cuda/memory.h"
#include "cuda_runtime.h"

namespace compact::kernels {

Memory cuda_memory() {
  return {.allocate = emulated::allocate,
          .release = [](void* p) { (void)cudaFree(p); },
          .copy =
              [](void* to, const void* from, size_t bytes) {
                if (cudaMemcpy(to, from, bytes, cudaMemcpyDefault) != cudaSuccess) {
                  throw std::runtime_error(cat("[cuda] ", emulated::error_text()));
                }
              },
          .guard = emulated::guard};
}

std::optional<Gpu> cuda_gpu(int) {
  return Gpu{.name = cat("emulated ", emulated::card().name),
             .shared_memory = static_cast<int64_t>(emulated::card().shared_bytes)};
}

}  // namespace compact::kernels
