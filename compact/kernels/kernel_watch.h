// SPDX-License-Identifier: Apache-2.0
// Watches the kernels of the meta device, which run nothing, so that plans can count them.
#pragma once

#include <cstdint>
#include <functional>

namespace compact::kernels {

struct KernelCall {
  const char* name;
  int64_t bytes;     // least that it reads and writes: every operand once, scratch as it is used
  int64_t launches;  // of the CUDA backend for it
};

// While it lives, calls `see` for every kernel call of this thread on the meta device.
class KernelWatch {
 public:
  using See = std::function<void(const KernelCall&)>;
  explicit KernelWatch(See see);
  ~KernelWatch();
  KernelWatch(const KernelWatch&) = delete;
  KernelWatch& operator=(const KernelWatch&) = delete;
};

}  // namespace compact::kernels
