// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/reference/reference.h"

namespace compact::kernels {

extern const Backend reference_backend = {
    .name = "reference",
    .device = Device::kCpu,
    .rms_norm = reference::rms_norm,
    .rms_norm_backward = reference::rms_norm_backward,
    .rope = reference::rope,
    .swiglu = reference::swiglu,
    .swiglu_backward = reference::swiglu_backward,
    .cross_entropy = reference::cross_entropy,
    .cross_entropy_backward = reference::cross_entropy_backward,
    .srht = reference::srht,
    .srht_transpose = reference::srht_transpose,
    .draw = reference::draw,
    .dropout = reference::dropout,
    .adamw = reference::adamw,
    .fold = reference::fold,
    .float8_pack = reference::float8_pack,
    .float8_unpack = reference::float8_unpack,
    .quantize = reference::quantize,
    .dequantize = reference::dequantize,
    .bit_pack = reference::bit_pack,
    .bit_unpack = reference::bit_unpack,
};

}  // namespace compact::kernels
