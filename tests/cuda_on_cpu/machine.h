// SPDX-License-Identifier: Apache-2.0
// The threads of one block at a time, and what they wait for.
#pragma once

#include <exception>
#include <memory>
#include <random>
#include <vector>

#include "card.h"
#include "emulator.h"
#include "fiber.h"

namespace emulated {

class Machine {
 public:
  Machine();
  // Runs all blocks of a launch; throws std::runtime_error with what was wrong and where.
  void run(const Job& job);

  // On a thread of the kernel.
  void barrier(Site at);
  uint64_t exchange(unsigned mask, uint64_t value, int source, bool fence, Site at);
  [[noreturn]] void stop(const std::string& text);
  void* shared() const { return shared_.get(); }

 private:
  enum class State : uint8_t { kReady, kWarp, kBarrier, kDone };
  struct Thread {
    Fiber fiber;
    std::byte* stack = nullptr;
    State state = State::kDone;
    Index index;
    // what it waits for
    Site site;
    unsigned mask;
    int source;
    bool fence;
    uint64_t value;
  };
  static void enter();
  void leave();
  void run_thread(unsigned i);
  void run_block();
  bool release_warp(unsigned first, unsigned end);
  [[noreturn]] void diverged(Thread& t, const std::string& what);

  std::vector<Thread> threads_{kMostThreads};
  std::vector<unsigned> order_;  // of the warps
  std::vector<uint32_t> fences_;
  Thread* current_ = nullptr;
  bool on_fiber_ = false;
  unsigned count_ = 0;
  const Job* job_ = nullptr;
  std::exception_ptr failure_;
  std::unique_ptr<std::byte[]> shared_;
  bool broken_ = true;  // fibers have to be made (again)
  std::mt19937 random_;
  bool shuffled_ = false;
};

// The only one; it outlives static destructors that release memory.
Machine& machine();

}  // namespace emulated
