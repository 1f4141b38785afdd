// SPDX-License-Identifier: Apache-2.0
#include "fiber.h"

#include <utility>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#else
// Calls of the address sanitizer about stacks.
static void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
static void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
#endif

namespace emulated {
namespace {

namespace context = boost::context;

struct Stack {  // which the emulator owns
  context::stack_context context;
  context::stack_context allocate() { return context; }
  void deallocate(context::stack_context&) {}
};

}  // namespace

struct Fiber::Both {
  context::fiber inner, outer;
};

void Fiber::make(std::byte* stack, void (*body)()) {
  stack_ = stack;
  body_ = body;
  frames_ = nullptr;
  // The one before stays as it is: its destructor would unwind a stack that is used again.
  both_ = new Both;
  Stack memory;
  memory.context.sp = stack + kStackBytes;
  memory.context.size = kStackBytes;
  const context::preallocated place(memory.context.sp, kStackBytes, memory.context);
  both_->inner = context::fiber(std::allocator_arg, place, memory, [this](context::fiber&& outer) {
    both_->outer = std::move(outer);
    __sanitizer_finish_switch_fiber(nullptr, &outer_stack_, &outer_bytes_);
    body_();
    return std::move(both_->outer);
  });
}

void Fiber::run() {
  void* outer_frames = nullptr;
  __sanitizer_start_switch_fiber(&outer_frames, stack_, kStackBytes);
  both_->inner = std::move(both_->inner).resume();
  __sanitizer_finish_switch_fiber(outer_frames, nullptr, nullptr);
}

void Fiber::leave() {
  __sanitizer_start_switch_fiber(&frames_, outer_stack_, outer_bytes_);
  both_->outer = std::move(both_->outer).resume();
  __sanitizer_finish_switch_fiber(frames_, &outer_stack_, &outer_bytes_);
}

}  // namespace emulated
