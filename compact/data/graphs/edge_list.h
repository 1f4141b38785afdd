// SPDX-License-Identifier: Apache-2.0
// The edges of an undirected graph, gathered one by one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace compact {

class EdgeList {
 public:
  static constexpr int64_t kMostNodes = int64_t{1} << 27;

  // Adds a - b, both below kMostNodes, in both directions. An edge to itself is left out.
  void add(int64_t a, int64_t b);

  // int64 [2, edges], row 0 the source, row 1 the target, ascending by source and target, each
  // once.
  at::Tensor tensor();

 private:
  std::vector<uint64_t> keys_;  // source and target, 32 bits each
};

}  // namespace compact
