// SPDX-License-Identifier: Apache-2.0
// Runs CUDA kernels on one thread of the CPU: every thread of a block is a fiber that runs until it
// waits at a barrier or for its warp. Launches wait in a queue until somebody synchronizes, as on a
// device. Blocks, and threads between barriers, run in an order that COMPACT_EMULATED_SEED shuffles
// (0: ascending). What a device leaves undefined is an error with the place in the source:
//  - a barrier or a warp operation that not all threads (lanes of the mask) reach at one place
//  - a shuffle from a lane outside the mask, or beyond the block
//  - grids, blocks and shared memory beyond the limits of the card
// The files of kernels compiled with -fsanitize=thread call access.cpp instead of that library;
// then also: races in shared and global memory, reads of shared memory that nobody wrote, accesses
// outside of the memory allocated, on another thread's stack, or not aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>

namespace emulated {

using Site = std::source_location;
struct Index {
  unsigned x, y, z;
};
inline Index threadIdx, blockIdx, blockDim, gridDim;  // of the fiber that runs

struct Job {
  const char* name;
  const void* kernel;
  Index grid, block;
  size_t shared;                                            // bytes of dynamic shared memory
  std::unique_ptr<const void, void (*)(const void*)> body;  // the kernel and its arguments
  void (*call)(const void* body);
};

// The host's side. Codes are those of cudaError_t; the text is that of the first error.
void submit(Job job);
int synchronize();
int take_error();
const char* error_text();
int allow_shared(const void* kernel, int bytes);
void* allocate(size_t bytes);
void release(void* p);
void guard(void* p, size_t bytes, bool on);  // bytes that no kernel may touch
// Whether a launch runs at once, and may touch the host's memory, as where the CPU's tensors are
// the device's. An error is thrown then.
void run_at_once(bool on);

// The device's side.
int lane();
void* dynamic_shared();
void barrier(Site at);
// Waits for the lanes of `mask`. Gives the value of lane `source`; for -1 the lanes whose value is
// not 0. With `fence` the memory of the warp is ordered as well.
uint64_t exchange(unsigned mask, uint64_t value, int source, bool fence, Site at);

// Ends the launch with this text; a thread of a kernel may call it.
[[noreturn]] void stop(const std::string& text);

// The state that access.cpp and the emulator share.
struct Running {
  bool inside = false;       // a thread of a kernel runs
  bool host_memory = false;  // which is the device's, too
  const char* kernel = "";
  uint32_t thread = 0;                                       // 1 + its number in the grid
  uint32_t block = 0;                                        // its block's number
  const std::byte *stack = nullptr, *stack_end = nullptr;    // its own
  const std::byte *stacks = nullptr, *stacks_end = nullptr;  // of all
  const std::byte *shared = nullptr, *shared_end = nullptr;  // dynamic, as asked for
  uint32_t now = 0;     // rises with every barrier of a block and every new block
  uint32_t fences = 0;  // of its warp, rises with every __syncwarp
  uint32_t block_began = 0, launch_began = 0;
};
extern Running running;
struct Watcher {  // null where the kernels are not instrumented
  void (*allocated)(void*, size_t) = nullptr;
  void (*released)(void*) = nullptr;
  void (*guarded)(void*, size_t, bool) = nullptr;
  void (*paused)() = nullptr;  // the running thread waits or ends
};
extern Watcher watcher;

}  // namespace emulated
