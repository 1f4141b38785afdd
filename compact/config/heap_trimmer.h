// SPDX-License-Identifier: Apache-2.0
// Gives freed memory back to the machine where steps of unlike sizes have scattered it.
#pragma once

#include <cstdint>
#include <optional>

namespace compact {

// The heap keeps what tensors freed, since the next step asks for the same sizes (memory.h). Where
// sizes change from step to step, what is kept fits less and less, and the process grows far beyond
// its tensors. Between steps this looks at the process, and where it has grown by more than an
// eighth of the tensors' peak (and 32 MiB) beyond what the first step took beside its tensors, all
// free pages go back. Steps of one size come to that at most in the first few. Linux with glibc;
// elsewhere it does nothing.
class HeapTrimmer {
 public:
  // After a step, whose tensors took `peak` bytes at most on the CPU. Returns whether it trimmed.
  bool after_step(int64_t peak);

 private:
  std::optional<int64_t> beside_;  // what the process took after its first step, less the tensors
  int64_t most_ = 0;               // peak of all steps
  int64_t settled_ = 0;            // what the process took after the step that followed a trim
  bool trimmed_ = false;
};

}  // namespace compact
