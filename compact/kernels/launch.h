// SPDX-License-Identifier: Apache-2.0
// How a kernel is called: the type of its elements, the device, the threads or the stream.
#pragma once

#include <cstdint>

#include "compact/base/function_ref.h"

namespace compact::kernels {

enum class Type : uint8_t { kFloat32, kBFloat16 };
enum class Device : uint8_t { kCpu, kCuda, kMeta };

// The caller's threads (CPU) or stream (CUDA), which run a kernel.
struct Launch {
  // Calls body(begin, end) on disjoint ranges that cover [0, n); a range is at least `grain` long
  // unless it is the last one.
  using Body = FunctionRef<void(int64_t begin, int64_t end)>;
  void (*parallel_for)(int64_t n, int64_t grain, Body body) = nullptr;
  void* stream = nullptr;  // a cudaStream_t
};

// Runs everything on the calling thread.
Launch serial();

}  // namespace compact::kernels
