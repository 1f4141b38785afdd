// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: every kernel runs on the caller's stream and returns at once.
#include "compact/kernels/cuda/kernels.cuh"

namespace compact::kernels {

extern const Backend cuda_backend;
const Backend cuda_backend = {
    .name = "cuda",
    .device = Device::kCuda,
    .rms_norm = cuda::rms_norm,
    .rms_norm_backward = cuda::rms_norm_backward,
    .rope = cuda::rope,
    .swiglu = cuda::swiglu,
    .swiglu_backward = cuda::swiglu_backward,
    .cross_entropy = cuda::cross_entropy,
    .cross_entropy_backward = cuda::cross_entropy_backward,
    .srht = cuda::srht,
    .srht_transpose = cuda::srht_transpose,
    .draw = cuda::draw,
    .dropout = cuda::dropout,
    .adamw = cuda::adamw,
    .fold = cuda::fold,
    .float8_pack = cuda::float8_pack,
    .float8_unpack = cuda::float8_unpack,
    .quantize = cuda::quantize,
    .dequantize = cuda::dequantize,
    .bit_pack = cuda::bit_pack,
    .bit_unpack = cuda::bit_unpack,
};

}  // namespace compact::kernels
