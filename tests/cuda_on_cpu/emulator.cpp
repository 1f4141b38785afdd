// SPDX-License-Identifier: Apache-2.0
#include "emulator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "machine.h"

namespace emulated {
namespace {

constexpr int kInvalidValue = 1, kInvalidConfiguration = 9, kLaunchFailure = 719;

struct Host {
  std::vector<Job> queue;
  std::map<const void*, size_t> allowed;  // shared memory, by kernel
  int status = 0;                         // of the last call that failed
  int sticky = 0;                         // after a failed kernel, of every call
  std::string text = "no error";
  bool at_once = false;

  int failed(int code, const std::string& what) {
    if (status == 0) text = what;
    return status = code;
  }
};
Host& host() {
  static auto* the = new Host;  // outlives static destructors that release memory
  return *the;
}

}  // namespace

void submit(Job job) {
  Host& h = host();
  const Index g = job.grid, b = job.block;
  const uint64_t threads = uint64_t{b.x} * b.y * b.z;
  const auto found = h.allowed.find(job.kernel);
  const size_t most = found == h.allowed.end() ? kPlainSharedBytes : found->second;
  if (g.x == 0 || g.y == 0 || g.z == 0 || threads == 0 || threads > kMostThreads || b.z > 64 ||
      g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535 ||
      job.shared > std::max(most, kPlainSharedBytes)) {
    h.failed(kInvalidConfiguration, std::string(job.name) + ": invalid configuration: grid " +
                                        std::to_string(g.x) + " x " + std::to_string(g.y) + " x " +
                                        std::to_string(g.z) + ", " + std::to_string(threads) +
                                        " threads, " + std::to_string(job.shared) +
                                        " bytes of shared memory");
    return;
  }
  if (h.at_once) return machine().run(job);
  h.queue.push_back(std::move(job));
}

int synchronize() {
  Host& h = host();
  for (const Job& job : std::exchange(h.queue, {})) {
    if (h.sticky) break;
    try {
      machine().run(job);
    } catch (const std::exception& e) {
      h.sticky = h.failed(kLaunchFailure, e.what());
    }
  }
  return h.sticky;
}

void run_at_once(bool on) {
  synchronize();
  host().at_once = running.host_memory = on;
}

int take_error() {
  Host& h = host();
  return h.sticky ? h.sticky : std::exchange(h.status, 0);
}
const char* error_text() { return host().text.c_str(); }

int allow_shared(const void* kernel, int bytes) {
  if (bytes < 0 || static_cast<size_t>(bytes) > card().shared_bytes) {
    return host().failed(kInvalidValue, "more shared memory than the card has");
  }
  host().allowed[kernel] = static_cast<size_t>(bytes);
  return 0;
}

void* allocate(size_t bytes) {
  void* p = nullptr;  // of the exact size, for the address sanitizer
  if (posix_memalign(&p, 256, bytes) != 0) throw std::bad_alloc();
  std::memset(p, 0xff, bytes);
  if (watcher.allocated) watcher.allocated(p, bytes);
  return p;
}
void release(void* p) {
  if (watcher.released) watcher.released(p);
  std::free(p);
}

void guard(void* p, size_t bytes, bool on) {
  synchronize();  // the kernels before see the guards as they were
  if (watcher.guarded) watcher.guarded(p, bytes, on);
#if defined(__SANITIZE_ADDRESS__)
  on ? ASAN_POISON_MEMORY_REGION(p, bytes) : ASAN_UNPOISON_MEMORY_REGION(p, bytes);
#endif
}

int lane() {
  const Index t = threadIdx;
  return static_cast<int>((t.x + blockDim.x * (t.y + blockDim.y * t.z)) % kWarp);
}
void* dynamic_shared() { return machine().shared(); }
void barrier(Site at) { machine().barrier(at); }
uint64_t exchange(unsigned mask, uint64_t value, int source, bool fence, Site at) {
  return machine().exchange(mask, value, source, fence, at);
}
void stop(const std::string& text) { machine().stop(text); }

}  // namespace emulated
