// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/gpu.h"

#if defined(COMPACT_HAS_CUDA)
#include "compact/kernels/cuda/gpu.h"
#endif

namespace compact::kernels {

std::optional<Gpu> find_gpu([[maybe_unused]] int index) {
#if defined(COMPACT_HAS_CUDA)
  return cuda_gpu(index);
#else
  return std::nullopt;
#endif
}

namespace {

Gpu& planned() {
  static Gpu gpu = find_gpu(0).value_or(Gpu());
  return gpu;
}

}  // namespace

const Gpu& planned_gpu() { return planned(); }
void set_planned_gpu(const Gpu& gpu) { planned() = gpu; }

}  // namespace compact::kernels
