// SPDX-License-Identifier: Apache-2.0
// Which rank of a group has the moments and the master of a parameter and makes its updates, as in
// ZeRO's stages (Rajbhandari et al. 2020). An owner has whole parameters, so that Muon sees whole
// matrices and projected updates are sent projected.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace compact {

// The owner of parameters of which every rank has the state and makes the updates.
inline constexpr int kEveryRank = -1;

// The owners of parameters that take so many bytes each, kEveryRank for 0 bytes: the largest first,
// each to the rank that has the least so far. The same on all ranks. `loads`: bytes that each rank
// has before; empty: none.
std::vector<int> deal_owners(std::span<const int64_t> bytes, int ranks,
                             std::vector<int64_t> loads = {});

}  // namespace compact
