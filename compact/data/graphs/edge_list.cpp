// SPDX-License-Identifier: Apache-2.0
#include "compact/data/graphs/edge_list.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cassert>

namespace compact {

void EdgeList::add(int64_t a, int64_t b) {
  assert(a >= 0 && a < kMostNodes && b >= 0 && b < kMostNodes);
  if (a == b) return;
  keys_.push_back(static_cast<uint64_t>(a) << 32 | static_cast<uint64_t>(b));
  keys_.push_back(static_cast<uint64_t>(b) << 32 | static_cast<uint64_t>(a));
}

at::Tensor EdgeList::tensor() {
  std::sort(keys_.begin(), keys_.end());
  keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
  const auto count = static_cast<int64_t>(keys_.size());
  at::Tensor edges = at::empty({2, count}, at::kLong);
  auto* const to = edges.data_ptr<int64_t>();
  for (int64_t e = 0; e < count; ++e) {
    to[e] = static_cast<int64_t>(keys_[e] >> 32);
    to[count + e] = static_cast<int64_t>(keys_[e] & 0xffffffffu);
  }
  return edges;
}

}  // namespace compact
