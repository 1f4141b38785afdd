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

// A kernel every backend must have: a Backend that leaves one out does not compile.
template <class F>
class Required;
template <class... Args>
class Required<void(Args...)> {
 public:
  Required(void (*f)(Args...)) : f_(f) {}  // NOLINT: implicit on purpose
  void operator()(Args... args) const { f_(args...); }

 private:
  void (*f_)(Args...);
};

struct Backend {
  const char* name;
  Device device;
  Required<void(const RmsNorm&, const Launch&)> rms_norm;
  Required<void(const RmsNormBackward&, const Launch&)> rms_norm_backward;
  Required<void(const Rope&, const Launch&)> rope;
  Required<void(const SwiGlu&, const Launch&)> swiglu;
  Required<void(const SwiGluBackward&, const Launch&)> swiglu_backward;
  Required<void(const CrossEntropy&, const Launch&)> cross_entropy;
  Required<void(const CrossEntropyBackward&, const Launch&)> cross_entropy_backward;
  Required<void(const Srht&, const Launch&)> srht;
  Required<void(const SrhtTranspose&, const Launch&)> srht_transpose;
  Required<void(const Draw&, const Launch&)> draw;
  Required<void(const Dropout&, const Launch&)> dropout;
  Required<void(const AdamW&, const Launch&)> adamw;
  Required<void(const Fold&, const Launch&)> fold;
  Required<void(const Float8Pack&, const Launch&)> float8_pack;
  Required<void(const Float8Unpack&, const Launch&)> float8_unpack;
  Required<void(const Quantize&, const Launch&)> quantize;
  Required<void(const Dequantize&, const Launch&)> dequantize;
  Required<void(const BitPack&, const Launch&)> bit_pack;
  Required<void(const BitUnpack&, const Launch&)> bit_unpack;
};

// All backends of this build, fastest first.
std::span<const Backend* const> backends();
// The fastest backend for a device; throws where this build has none.
const Backend& backend_for(Device);

}  // namespace compact::kernels
