// SPDX-License-Identifier: Apache-2.0
#include "compact/data/samples/split.h"

#include <algorithm>
#include <numeric>

#include "compact/data/samples/permutation.h"

namespace compact {

SampleSplit drawn_split(int64_t count, double part, uint64_t key) {
  const auto held_out = static_cast<int64_t>(part * static_cast<double>(count));
  const Permutation order(static_cast<uint64_t>(count), key);
  SampleSplit split;
  for (int64_t i = 0; i < count; ++i) {
    (i < count - held_out ? split.train : split.held_out)
        .push_back(static_cast<int64_t>(order(static_cast<uint64_t>(i))));
  }
  return split;
}

std::vector<int64_t> all_samples(int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<int64_t> some_samples(int64_t count, int64_t most) {
  if (most == 0 || most >= count) return all_samples(count);
  constexpr uint64_t kKey = 0x736f6d652073616d;  // one for all runs, so that their figures compare
  const Permutation order(static_cast<uint64_t>(count), kKey);
  std::vector<int64_t> some;
  for (int64_t i = 0; i < most; ++i) {
    some.push_back(static_cast<int64_t>(order(static_cast<uint64_t>(i))));
  }
  std::ranges::sort(some);
  return some;
}

}  // namespace compact
