// SPDX-License-Identifier: Apache-2.0
// The contract between operations and hardware: one Backend per folder of kernels/, every kernel
// required. reference/ is the definition of correct; the others are tested against it. No torch
// here: plain pointers, shapes, and a Launch that says where to run.
//
// Rules for every kernel
//  - Pointers are aligned to their element only. A count of zero is legal and does nothing.
//  - Tensors are dense and row-major unless a stride is named. Strides are in elements.
//  - Aliasing is allowed only where a comment says so.
//  - Arithmetic is f32 inside; a bf16 result is rounded once, to nearest even, unless a comment
//    says "stochastic". NaN and infinities propagate.
//  - Results do not depend on the number of threads, nor on alignment.
//  - Caller checks shapes; a kernel asserts only.
#pragma once

#include <span>

#include "compact/kernels/codecs.h"
#include "compact/kernels/launch.h"
#include "compact/kernels/layers.h"
#include "compact/kernels/updates.h"

namespace compact::kernels {

// Every kernel: its name and its arguments. A backend has a function for each in its namespace; one
// that lacks it does not link.
#define COMPACT_KERNELS(X)                        \
  X(rms_norm, RmsNorm)                            \
  X(rms_norm_backward, RmsNormBackward)           \
  X(rope, Rope)                                   \
  X(swiglu, SwiGlu)                               \
  X(swiglu_backward, SwiGluBackward)              \
  X(cross_entropy, CrossEntropy)                  \
  X(cross_entropy_backward, CrossEntropyBackward) \
  X(srht, Srht)                                   \
  X(srht_transpose, SrhtTranspose)                \
  X(draw, Draw)                                   \
  X(dropout, Dropout)                             \
  X(adamw, AdamW)                                 \
  X(adamw_all, AdamWList)                         \
  X(fold, Fold)                                   \
  X(float8_pack, Float8Pack)                      \
  X(float8_unpack, Float8Unpack)                  \
  X(quantize, Quantize)                           \
  X(dequantize, Dequantize)                       \
  X(nf4_decode, Nf4Decode)                        \
  X(bit_pack, BitPack)                            \
  X(bit_unpack, BitUnpack)

#define COMPACT_KERNEL_DECLARATION(name, Args) void name(const Args&, const Launch&);

struct Backend {
  const char* name;
  Device device;
#define X(name, Args) void (*name)(const Args&, const Launch&);
  COMPACT_KERNELS(X)
#undef X
};

// All backends of this build, fastest first.
std::span<const Backend* const> backends();
// The fastest backend for a device; throws where this build has none.
const Backend& backend_for(Device);

}  // namespace compact::kernels
