// SPDX-License-Identifier: Apache-2.0
// Which operation runs on this thread, and what it was called with.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace compact {

struct RunningOp {
  std::string name;                         // convolution
  c10::SmallVector<const void*, 6> inputs;  // storages of its tensor arguments, in order
  c10::SmallVector<int64_t, 5> sizes = {};  // of the first of them
  std::optional<int64_t> number = {};       // the first argument that is an integer, as a dimension
  uint64_t serial = 0;                      // of its calls on this thread
};

// Where a copy came from: a tensor in another type, as autocast makes of weights.
struct CopiedFrom {
  at::Tensor source;
  // The copy's; it begins where its storage does.
  at::ScalarType type;
  std::vector<int64_t> sizes, strides;
};

// Watches operations on this thread while it lives.
class OpWatch {
 public:
  OpWatch();
  ~OpWatch();
  OpWatch(const OpWatch&) = delete;
  // The innermost operation that runs, null outside of any.
  static const RunningOp* current();
  // The storage of what was copied into this one on this thread, by a watched operation; else null.
  static const void* source_of(const void* storage);
  // What was copied into the storage that `t` shows; nullopt where that is not known, is gone, or
  // either was changed since.
  static std::optional<CopiedFrom> copied_from(const at::Tensor& t);

 private:
  at::CallbackHandle handle_;
};

// A number that is the storage's while it lives.
const void* storage_of(const at::Tensor& t);

}  // namespace compact
