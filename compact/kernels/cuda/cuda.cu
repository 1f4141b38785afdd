// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: every kernel runs on the caller's stream and returns at once.
#include "compact/kernels/cuda/cuda.cuh"

namespace compact::kernels {

#define X(name, Args) cuda::name,
extern const Backend cuda_backend;
const Backend cuda_backend = {"cuda", Device::kCuda, COMPACT_KERNELS(X)};
#undef X

}  // namespace compact::kernels
