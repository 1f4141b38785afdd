// SPDX-License-Identifier: Apache-2.0
// A thread of a kernel: code on a stack of its own that runs until it leaves, and goes on there.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>

namespace emulated {

class Fiber {
 public:
  static constexpr size_t kStackBytes = 128 * 1024;
  // To run `body`, which never returns, on `stack` from the first run() on. One that was left
  // half-way is forgotten: nothing on its stack is unwound.
  void make(std::byte* stack, void (*body)());
  void run();    // until the fiber leaves
  void leave();  // on the fiber itself: back to run()

 private:
  struct Both;
  Both* both_ = nullptr;
  std::byte* stack_ = nullptr;
  void (*body_)() = nullptr;
  // State for the address sanitizer: the fiber's own frames, and the stack of run().
  void* frames_ = nullptr;
  const void* outer_stack_ = nullptr;
  size_t outer_bytes_ = 0;
};

}  // namespace emulated
