// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/cpu/cpu.h"

namespace compact::kernels {

extern const Backend cpu_backend = {
    .name = "cpu",
    .device = Device::kCpu,
    .rms_norm = cpu::rms_norm,
    .rms_norm_backward = cpu::rms_norm_backward,
    .rope = cpu::rope,
    .swiglu = cpu::swiglu,
    .swiglu_backward = cpu::swiglu_backward,
    .cross_entropy = cpu::cross_entropy,
    .cross_entropy_backward = cpu::cross_entropy_backward,
    .srht = cpu::srht,
    .srht_transpose = cpu::srht_transpose,
    .draw = cpu::draw,
    .dropout = cpu::dropout,
    .adamw = cpu::adamw,
    .fold = cpu::fold,
    .float8_pack = cpu::float8_pack,
    .float8_unpack = cpu::float8_unpack,
    .quantize = cpu::quantize,
    .dequantize = cpu::dequantize,
    .bit_pack = cpu::bit_pack,
    .bit_unpack = cpu::bit_unpack,
};

}  // namespace compact::kernels
