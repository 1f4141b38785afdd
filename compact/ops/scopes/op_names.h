// SPDX-License-Identifier: Apache-2.0
// Which operation runs on this thread, and what it was called with.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace compact {

class FusedAttention;
class OpTape;

struct RunningOp {
  std::string name;           // convolution, without its namespace
  std::string overload = {};  // Tensor_Scalar
  // It is an operation of ATen or of this library. Anything else may have any name: a user's own
  // autograd function may be called relu.
  bool known = false;
  bool is_operator = false;                      // it has a schema
  bool is_opaque = false;                        // operations inside it must not be replayed
  c10::SmallVector<const void*, 6> inputs = {};  // storages of its tensor arguments, in order
  c10::SmallVector<int64_t, 5> sizes = {};       // of the first of them
  // Sizes of the first two, 1 where all elements of a dimension are one (expand).
  std::array<c10::SmallVector<int64_t, 5>, 2> values = {};
  c10::SmallVector<double, 4> numbers = {};  // its arguments that are numbers, in order
  c10::SmallVector<int64_t, 5> list = {};    // the first that is a list of integers
  uint64_t serial = 0;                       // of its calls on this thread
  // For fused attention only: its arguments, and how they are held, as noted while it runs.
  std::vector<c10::IValue> arguments = {};
  mutable std::shared_ptr<FusedAttention> attention = {};
};

// Whether ATen's operation of this name computes attention without its weights.
bool is_fused_attention(std::string_view name);

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
  // While it lives, watchers of this thread see no operation: what runs is one node of the graph,
  // whose result is given to made().
  class AsOne {
   public:
    AsOne();
    ~AsOne();
    AsOne(const AsOne&) = delete;
    // `t`: new memory, which later operations may be rebuilt from.
    static void made(const at::Tensor& t);

   private:
    bool watched_;
  };
  // `tape`: what notes all operations, or null. `hooks`: how many of Python's hooks of saved
  // tensors are in force when the watcher's own are the innermost.
  explicit OpWatch(std::shared_ptr<OpTape> tape = nullptr,
                   size_t hooks = std::numeric_limits<size_t>::max());
  ~OpWatch();
  OpWatch(const OpWatch&) = delete;
  // The innermost operation that runs, null outside of any.
  static const RunningOp* current();
  // How many operations with gradients have run inside other hooks since the watch began: those
  // hooks, not ours, got the tensors that they saved.
  static int64_t under_other_hooks();
  // The storage that a watched operation of this thread copied into this one; else null.
  static const void* source_of(const void* storage);
  // The source of the copy in the storage of `t`; nullopt if it is unknown or gone, or either was
  // changed since.
  static std::optional<CopiedFrom> copied_from(const at::Tensor& t);

 private:
  std::shared_ptr<OpTape> tape_;
  size_t hooks_before_;
  int64_t others_before_;
};

// Identifies the storage of `t` while it lives.
const void* storage_of(const at::Tensor& t);

}  // namespace compact
