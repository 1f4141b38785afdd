// SPDX-License-Identifier: Apache-2.0
// Which rank of a group has the moments and the master of a parameter and makes its updates, as
// ZeRO's stages have it (Rajbhandari et al. 2020), of whole parameters: what looks at a matrix as a
// whole (Muon) sees it whole, and a projected update is sent projected.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace compact {

// Every rank has them and makes the updates itself.
inline constexpr int kEveryRank = -1;

// The owner of each of so many bytes, or kEveryRank where there are none to be had: the largest
// first, each to the rank that has the least by then. The same on all ranks. `loads`: what each has
// before; empty: nothing.
std::vector<int> deal_owners(std::span<const int64_t> bytes, int ranks,
                             std::vector<int64_t> loads = {});

}  // namespace compact
