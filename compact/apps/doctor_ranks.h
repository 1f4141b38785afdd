// SPDX-License-Identifier: Apache-2.0
// Tests whether the processes of a launcher reach each other, and how fast.
#pragma once

#include <iosfwd>

#include "compact/parallel/group.h"

namespace compact {

// All ranks call it: sums a tensor on the CPU and, where all have a GPU, on that; rank 0 prints
// time and bandwidth. Returns whether sums were right. Throws GroupError where a rank has ended.
bool try_ranks(Group& group, std::ostream& out);

}  // namespace compact
