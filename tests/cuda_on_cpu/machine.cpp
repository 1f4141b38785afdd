// SPDX-License-Identifier: Apache-2.0
#include "machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace emulated {
namespace {

std::string text_of(Site at) {
  return std::string(at.file_name()) + ":" + std::to_string(at.line());
}
std::string text_of(Index i) {
  return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ")";
}
bool same(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         std::strcmp(a.file_name(), b.file_name()) == 0;
}

// The emulator's own accesses are nobody's business, nor those of the library's templates, of which
// it may run the kernels' copy.
void pause() {
  running.inside = false;
  if (watcher.paused) watcher.paused();
}

}  // namespace

Running running;
Watcher watcher;

Machine& machine() {
  static auto* the = new Machine;
  return *the;
}

Machine::Machine() {
  const char* seed = std::getenv("COMPACT_EMULATED_SEED");
  if (seed && std::atoi(seed) != 0) {
    shuffled_ = true;
    random_.seed(static_cast<unsigned>(std::atoi(seed)));
  }
  constexpr size_t kBytes = Fiber::kStackBytes * kMostThreads;
  void* stacks = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) throw std::bad_alloc();
  running.stacks = static_cast<std::byte*>(stacks);
  running.stacks_end = running.stacks + kBytes;
  for (size_t i = 0; i < kMostThreads; ++i) {
    threads_[i].stack = static_cast<std::byte*>(stacks) + i * Fiber::kStackBytes;
  }
}

void Machine::enter() {
  for (;;) {
    Machine& m = machine();
    running.inside = true;
    m.job_->call(m.job_->body.get());
    pause();
    m.current_->state = State::kDone;
    m.leave();
  }
}

void Machine::leave() {
  running.inside = false;
  current_->fiber.leave();
  running.inside = true;
}

void Machine::run_thread(unsigned i) {
  Thread& t = threads_[i];
  current_ = &t;
  threadIdx = t.index;
  running.thread = 1 + running.block * count_ + i;
  running.fences = fences_[i / kWarp];
  running.stack = t.stack;
  running.stack_end = t.stack + Fiber::kStackBytes;
  on_fiber_ = true;
  t.fiber.run();
  on_fiber_ = false;
  if (failure_) {
    broken_ = true;
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void Machine::diverged(Thread& t, const std::string& what) {
  current_ = &t;
  broken_ = true;
  stop("waits at " + text_of(t.site) + " for " + what);
}

// Lets go on the lanes of one mask that have all come to one place; false where none wait.
bool Machine::release_warp(unsigned first, unsigned end) {
  Thread* waiting = nullptr;
  for (unsigned i = first; i < end; ++i) {
    Thread& t = threads_[i];
    if (t.state != State::kWarp) continue;
    waiting = &t;
    bool all = true;
    for (unsigned lane = 0; lane < kWarp && all; ++lane) {
      if (!(t.mask >> lane & 1)) continue;
      if (first + lane >= end) diverged(t, "a lane beyond the block");
      const Thread& other = threads_[first + lane];
      all = other.state == State::kWarp && same(other.site, t.site) && other.mask == t.mask;
    }
    if (!all) continue;
    uint64_t values[kWarp] = {};
    unsigned set = 0;
    for (unsigned lane = 0; lane < kWarp && first + lane < end; ++lane) {
      values[lane] = threads_[first + lane].value;
      if ((t.mask >> lane & 1) && values[lane]) set |= 1u << lane;
    }
    const unsigned mask = t.mask;
    if (t.fence) ++fences_[first / kWarp];
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if (!(mask >> lane & 1)) continue;
      Thread& one = threads_[first + lane];
      one.value = one.source < 0 ? set : values[one.source];
      one.state = State::kReady;
    }
    return true;
  }
  if (waiting) diverged(*waiting, "lanes of its warp that left, or wait elsewhere");
  return false;
}

void Machine::run_block() {
  running.block_began = ++running.now;
  std::fill(fences_.begin(), fences_.end(), 0);
  for (unsigned i = 0; i < count_; ++i) threads_[i].state = State::kReady;
  for (;;) {
    std::iota(order_.begin(), order_.end(), 0u);
    if (shuffled_) std::shuffle(order_.begin(), order_.end(), random_);
    for (const unsigned w : order_) {
      const unsigned first = w * kWarp, end = std::min(first + kWarp, count_);
      unsigned lanes[kWarp];
      std::iota(lanes, lanes + (end - first), first);
      if (shuffled_) std::shuffle(lanes, lanes + (end - first), random_);
      do {
        for (unsigned j = 0; j < end - first; ++j) {
          if (threads_[lanes[j]].state == State::kReady) run_thread(lanes[j]);
        }
      } while (release_warp(first, end));
    }
    Thread* waits = nullptr;
    bool left = false;
    for (unsigned i = 0; i < count_; ++i) {
      Thread& t = threads_[i];
      if (t.state == State::kDone) {
        left = true;
      } else if (waits && !same(waits->site, t.site)) {
        diverged(t, "threads of its block that wait at " + text_of(waits->site));
      } else {
        waits = &t;
      }
    }
    if (!waits) return;
    if (left) diverged(*waits, "threads of its block that left");
    ++running.now;
    for (unsigned i = 0; i < count_; ++i) threads_[i].state = State::kReady;
  }
}

void Machine::run(const Job& job) {
  job_ = &job;
  count_ = job.block.x * job.block.y * job.block.z;
  order_.resize((count_ + kWarp - 1) / kWarp);
  fences_.assign((count_ + kWarp - 1) / kWarp, 0);
  if (std::exchange(broken_, false)) {
    for (Thread& t : threads_) t.fiber.make(t.stack, enter);
  }
  // As large as asked for, so that the address sanitizer sees what goes beyond.
  shared_ = std::make_unique<std::byte[]>(job.shared);
  running.kernel = job.name;
  running.shared = shared_.get();
  running.shared_end = running.shared + job.shared;
  running.launch_began = running.now + 1;
  gridDim = job.grid;
  blockDim = job.block;
  for (unsigned i = 0; i < count_; ++i) {
    threads_[i].index = {i % job.block.x, i / job.block.x % job.block.y,
                         i / job.block.x / job.block.y};
  }
  const uint64_t blocks = uint64_t{job.grid.x} * job.grid.y * job.grid.z;
  std::vector<uint32_t> order(blocks);
  std::iota(order.begin(), order.end(), 0u);
  if (shuffled_) std::shuffle(order.begin(), order.end(), random_);
  for (const uint32_t b : order) {
    running.block = b;
    blockIdx = {b % job.grid.x, b / job.grid.x % job.grid.y, b / job.grid.x / job.grid.y};
    std::memset(shared_.get(), 0xff, job.shared);
    run_block();
  }
  running.inside = false;
}

void Machine::barrier(Site at) {
  pause();
  current_->site = at;
  current_->state = State::kBarrier;
  leave();
}

uint64_t Machine::exchange(unsigned mask, uint64_t value, int source, bool fence, Site at) {
  pause();
  Thread& t = *current_;
  t.site = at;
  if (!(mask >> lane() & 1)) stop("is not in the mask, at " + text_of(at));
  if (source >= 0 && !(mask >> source & 1)) {
    stop("reads lane " + std::to_string(source) + " outside of the mask, at " + text_of(at));
  }
  t.mask = mask;
  t.value = value;
  t.source = source;
  t.fence = fence;
  t.state = State::kWarp;
  leave();
  return t.value;
}

void Machine::stop(const std::string& text) {
  running.inside = false;
  const std::string place = std::string(job_->name) + ", block " + text_of(blockIdx) + ", thread " +
                            text_of(current_->index);
  const auto failure = std::make_exception_ptr(std::runtime_error(place + ": " + text));
  if (!on_fiber_) std::rethrow_exception(failure);
  failure_ = failure;
  leave();  // for good: nothing here has to be unwound
  std::abort();
}

}  // namespace emulated
