// SPDX-License-Identifier: Apache-2.0
// Which samples are trained on and which are held out.
#pragma once

#include <cstdint>
#include <vector>

namespace compact {

struct SampleSplit {
  std::vector<int64_t> train, held_out;
};
// Holds out floor(part * count) samples, 0 <= part < 1; drawn, since files may be ordered by class.
SampleSplit drawn_split(int64_t count, double part, uint64_t key);

// 0, 1, ..., count - 1.
std::vector<int64_t> all_samples(int64_t count);
// `most` of them, drawn once and for all since files may be ordered by class, in rising order; all
// where `most` is 0 or there are no more.
std::vector<int64_t> some_samples(int64_t count, int64_t most);

}  // namespace compact
