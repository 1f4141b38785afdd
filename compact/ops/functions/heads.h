// SPDX-License-Identifier: Apache-2.0
// The heads of a fused product, as attention reads them.
#pragma once

#include <ATen/ATen.h>

#include <tuple>

namespace compact {

// [batch, sequence, heads dim] -> [batch, heads, sequence, dim], a view.
inline at::Tensor by_head(const at::Tensor& t, int64_t dim) {
  return t.unflatten(2, {-1, dim}).transpose(1, 2);
}

// Queries, keys and values of [batch, sequence, (heads + 2 kv_heads) dim], views by head.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> split_heads(const at::Tensor& x,
                                                                  int64_t heads, int64_t kv_heads,
                                                                  int64_t dim) {
  const at::Tensor h = by_head(x, dim);
  return {h.narrow(1, 0, heads), h.narrow(1, heads, kv_heads),
          h.narrow(1, heads + kv_heads, kv_heads)};
}

}  // namespace compact
