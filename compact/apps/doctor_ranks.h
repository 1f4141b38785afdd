// SPDX-License-Identifier: Apache-2.0
// Whether the processes of a launcher reach each other, and how fast.
#pragma once

#include <iosfwd>

#include "compact/parallel/group.h"

namespace compact {

// By all ranks: sums a tensor on the CPU and, where all have a GPU, on that; rank 0 prints seconds
// and bandwidth. Returns whether the sums were right. Throws GroupError where a rank has gone.
bool try_ranks(Group& group, std::ostream& out);

}  // namespace compact
