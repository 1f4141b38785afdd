// SPDX-License-Identifier: Apache-2.0
// Which operation runs on this thread, and what it was called with.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace compact {

struct RunningOp {
  std::string name;                    // convolution
  std::vector<const void*> inputs;     // storages of its tensor arguments, in order
  std::vector<int64_t> sizes = {};     // of the first of them
  std::optional<int64_t> number = {};  // the first argument that is an integer, as a dimension
  uint64_t serial = 0;                 // of its calls on this thread
};

// Watches operations on this thread while it lives.
class OpWatch {
 public:
  OpWatch();
  ~OpWatch();
  OpWatch(const OpWatch&) = delete;
  // The innermost operation that runs, null outside of any.
  static const RunningOp* current();

 private:
  at::CallbackHandle handle_;
};

// A number that is the storage's while it lives.
const void* storage_of(const at::Tensor& t);

}  // namespace compact
