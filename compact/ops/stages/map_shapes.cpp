// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/stages/map_shapes_impl.h"

#include <ATen/ATen.h>

namespace compact {

at::Tensor size_note(const at::Tensor& map) {
  return at::empty({0, map.size(1), map.size(2), map.size(3)}, map.options());
}

std::vector<int64_t> noted_sizes(const at::Tensor& note, const at::Tensor& gy) {
  return {gy.size(0), note.size(1), note.size(2), note.size(3)};
}

at::Tensor empty_map(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options(), at::MemoryFormat::ChannelsLast);
}

at::Tensor sizes_only(at::IntArrayRef s, const at::Tensor& like) {
  const int64_t strides[] = {s[1] * s[2] * s[3], 1, s[1] * s[3], s[1]};
  return at::for_blob(like.is_meta() ? nullptr : like.data_ptr(), s)
      .strides(strides)
      .options(like.options())
      .target_device(like.device())
      .make_tensor();
}

}  // namespace compact
