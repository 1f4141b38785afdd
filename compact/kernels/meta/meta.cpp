// SPDX-License-Identifier: Apache-2.0
// The backend of the meta device: does nothing, so that a step can be planned without memory.
#include "compact/kernels/kernels.h"

namespace compact::kernels {
namespace {

template <class Args>
void nothing(const Args&, const Launch&) {}

}  // namespace

extern const Backend meta_backend = {
    .name = "meta",
    .device = Device::kMeta,
    .rms_norm = nothing<RmsNorm>,
    .rms_norm_backward = nothing<RmsNormBackward>,
    .rope = nothing<Rope>,
    .swiglu = nothing<SwiGlu>,
    .swiglu_backward = nothing<SwiGluBackward>,
    .cross_entropy = nothing<CrossEntropy>,
    .cross_entropy_backward = nothing<CrossEntropyBackward>,
    .srht = nothing<Srht>,
    .srht_transpose = nothing<SrhtTranspose>,
    .draw = nothing<Draw>,
    .dropout = nothing<Dropout>,
    .adamw = nothing<AdamW>,
    .fold = nothing<Fold>,
    .float8_pack = nothing<Float8Pack>,
    .float8_unpack = nothing<Float8Unpack>,
    .quantize = nothing<Quantize>,
    .dequantize = nothing<Dequantize>,
    .bit_pack = nothing<BitPack>,
    .bit_unpack = nothing<BitUnpack>,
};

}  // namespace compact::kernels
