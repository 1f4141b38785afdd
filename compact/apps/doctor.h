// SPDX-License-Identifier: Apache-2.0
// Reports on this machine and build, and tests the kernels.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace compact {

// Prints versions, devices, memory and the paths of products, then runs every kernel of every
// backend and compares it with the reference. Returns whether all agree.
bool doctor(std::ostream& out);

// The instruction sets that matter to kernels and products here, out of the text of /proc/cpuinfo
// ("avx2 avx512f amx_tile"), in a fixed order.
std::vector<std::string> instruction_sets(std::string_view cpuinfo);

}  // namespace compact
