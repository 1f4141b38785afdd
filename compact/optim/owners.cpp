// SPDX-License-Identifier: Apache-2.0
#include "compact/optim/owners.h"

#include <algorithm>
#include <numeric>

namespace compact {

std::vector<int> deal_owners(std::span<const int64_t> bytes, int ranks,
                             std::vector<int64_t> loads) {
  std::vector<size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
  std::vector<int> owners(bytes.size(), kEveryRank);
  loads.resize(static_cast<size_t>(ranks));
  for (const size_t i : order) {
    if (bytes[i] == 0) continue;
    const auto least = std::ranges::min_element(loads);
    owners[i] = static_cast<int>(least - loads.begin());
    *least += bytes[i];
  }
  return owners;
}

}  // namespace compact
