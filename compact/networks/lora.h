// SPDX-License-Identifier: Apache-2.0
// Which products of a network get low-rank adapters (LoRA, Hu et al. 2021), and of what kind.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace compact {

// A product y = x W^T becomes y + scale() dropout(x) A^T B^T, where W and all else are frozen.
struct Lora {
  int64_t rank = 0;  // of A [rank, in] and B [out, rank]; 0: there are no adapters
  double alpha = 32, dropout = 0;
  bool rslora = false;  // Kalajdzievski 2023
  // The last words of modules as transformers names them (q_proj); none: every product of a block.
  std::vector<std::string> targets = {};

  double scale() const {
    const auto r = static_cast<double>(rank);
    return alpha / (rslora ? std::sqrt(r) : r);
  }
  bool takes(const std::string& module) const {
    return targets.empty() || std::ranges::any_of(targets, [&](const std::string& t) {
             return module.ends_with("." + t);
           });
  }
};

}  // namespace compact
