// SPDX-License-Identifier: Apache-2.0
// Runs every kernel of a backend beside the reference on small awkward inputs: sizes 0 and 1, odd
// and misaligned rows, NaN and infinities. For `doctor`, and for machines without a test library.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "compact/kernels/kernels.h"

namespace compact::kernels {

// Where a backend's tensors live. `copy` works in both directions and waits for the kernels before.
struct Memory {
  void* (*allocate)(size_t bytes);  // aligned to 64 bytes
  void (*release)(void*);
  void (*copy)(void* to, const void* from, size_t bytes);
  // Marks bytes as forbidden to kernels, or usable again, for a checking tool; null: no tool.
  void (*guard)(void* p, size_t bytes, bool on) = nullptr;
};
Memory host_memory();
// The memory of a backend's device; for meta the host's.
Memory memory_for(Device device);

struct KernelCheck {
  std::string kernel;
  int cases = 0;
  double worst = 0;     // largest error as a fraction of what is allowed
  std::string failure;  // the first one; empty: all cases agree
};

// One entry per kernel. Kernels that must agree bit for bit with the reference (rope, draw, adamw,
// fold) are compared exactly; misaligned runs must give the bits of aligned ones; nothing outside
// of the tensors may change.
std::vector<KernelCheck> self_check(const Backend& backend, const Memory& memory,
                                    const Launch& launch);

}  // namespace compact::kernels
