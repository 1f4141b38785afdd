// SPDX-License-Identifier: Apache-2.0
// The codecs, one file each; the table in codecs.cpp names them.
#pragma once

#include "compact/codecs/codec.h"

namespace compact {

extern const CodecInfo quantize_codec;
extern const CodecInfo mask_codec;
extern const CodecInfo index_codec;
extern const CodecInfo pool_codec;
extern const CodecInfo offload_codec;

// The elements of a dense tensor as they lie in memory, flat; a copy where it has gaps.
at::Tensor flat_of(const at::Tensor& x);
// Sizes, strides and type of a tensor, to make one like it.
struct Shape {
  explicit Shape(const at::Tensor& x);
  std::vector<int64_t> sizes, strides;  // dense
  at::TensorOptions options;
  at::Tensor empty() const;
};

}  // namespace compact
