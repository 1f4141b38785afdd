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
  // Marks bytes as no kernel's, or as usable again, where something watches; null: nothing does.
  void (*guard)(void* p, size_t bytes, bool on) = nullptr;
};
Memory host_memory();
// That of a backend's device; meta has none and takes the host's.
Memory memory_for(Device device);

struct KernelCheck {
  std::string kernel;
  int cases = 0;
  double worst = 0;     // largest error as a fraction of what is allowed
  std::string failure;  // the first one; empty: all cases agree
};

// One entry per kernel. What must agree bit for bit with the reference (rope, draw, adamw, fold) is
// compared so; misaligned runs must give the bits of aligned ones; nothing outside of the tensors
// may change.
std::vector<KernelCheck> self_check(const Backend& backend, const Memory& memory,
                                    const Launch& launch);

}  // namespace compact::kernels
