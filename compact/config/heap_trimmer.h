// SPDX-License-Identifier: Apache-2.0
// Returns freed heap memory to the machine where steps of different sizes have fragmented it.
#pragma once

#include <cstdint>
#include <optional>

namespace compact {

// The heap keeps what tensors freed, since the next step asks for the same sizes (memory.h). Where
// sizes change from step to step, kept blocks fit less and less, and the process grows far beyond
// its tensors. Between steps this measures the process; where it has grown by more than an eighth
// of the tensors' peak (and 32 MiB) beyond what the first step took beside its tensors, all free
// pages are returned. Steps of one size reach that in the first few steps if at all. Linux with
// glibc; elsewhere it does nothing.
class HeapTrimmer {
 public:
  // To be called after a step; `peak`: bytes of its tensors on the CPU. Returns whether it trimmed.
  bool after_step(int64_t peak);

 private:
  std::optional<int64_t> beside_;  // resident bytes after the first step, less its peak
  int64_t most_ = 0;               // peak of all steps
  int64_t settled_ = 0;  // resident bytes after the first step, or the one that followed a trim
  bool trimmed_ = false;
};

}  // namespace compact
