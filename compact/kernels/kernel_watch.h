// SPDX-License-Identifier: Apache-2.0
// A watch on the kernels of the meta device, which run nothing: what plans count of them.
#pragma once

#include <cstdint>
#include <functional>

namespace compact::kernels {

struct KernelCall {
  const char* name;
  int64_t bytes;     // that it reads and writes at least: every operand once, scratch as it is used
  int64_t launches;  // that CUDA's backend makes of it
};

// Shows the kernels that this thread asks the meta device for, while it lives; one at a time.
class KernelWatch {
 public:
  using See = std::function<void(const KernelCall&)>;
  explicit KernelWatch(See see);
  ~KernelWatch();
  KernelWatch(const KernelWatch&) = delete;
  KernelWatch& operator=(const KernelWatch&) = delete;
};

}  // namespace compact::kernels
