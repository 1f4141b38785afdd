// SPDX-License-Identifier: Apache-2.0
// The kernels of the CUDA backend: see kernels.h for what each computes.
#pragma once

#include "compact/kernels/cuda/common.cuh"

namespace compact::kernels::cuda {

void rms_norm(const RmsNorm&, const Launch&);
void rms_norm_backward(const RmsNormBackward&, const Launch&);
void rope(const Rope&, const Launch&);
void swiglu(const SwiGlu&, const Launch&);
void swiglu_backward(const SwiGluBackward&, const Launch&);
void cross_entropy(const CrossEntropy&, const Launch&);
void cross_entropy_backward(const CrossEntropyBackward&, const Launch&);
void srht(const Srht&, const Launch&);
void srht_transpose(const SrhtTranspose&, const Launch&);
void draw(const Draw&, const Launch&);
void dropout(const Dropout&, const Launch&);
void adamw(const AdamW&, const Launch&);
void fold(const Fold&, const Launch&);
void float8_pack(const Float8Pack&, const Launch&);
void float8_unpack(const Float8Unpack&, const Launch&);
void quantize(const Quantize&, const Launch&);
void dequantize(const Dequantize&, const Launch&);
void bit_pack(const BitPack&, const Launch&);
void bit_unpack(const BitUnpack&, const Launch&);

}  // namespace compact::kernels::cuda
