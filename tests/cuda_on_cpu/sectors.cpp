// SPDX-License-Identifier: Apache-2.0
#include "sectors.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "card.h"
#include "emulator.h"

namespace emulated {
namespace {

constexpr uintptr_t kSector = 32;

// One access of a warp: the time-th of its lanes at one instruction, all in one block.
struct WarpAccess {
  uint32_t warp, time;
  const void* from;
  bool operator==(const WarpAccess&) const = default;
};
struct Hash {
  size_t operator()(const WarpAccess& a) const {
    return (reinterpret_cast<uintptr_t>(a.from) * 31 + a.warp) * 0x9E3779B97F4A7C15ull + a.time;
  }
};

struct Counter {
  bool on = false;
  std::map<std::string, Traffic> kernels;
  Traffic* current = nullptr;
  uint32_t launch = 0, block = 0;
  std::unordered_map<WarpAccess, uint32_t, Hash> times;                   // of a lane
  std::unordered_map<WarpAccess, std::vector<uintptr_t>, Hash> accesses;  // sectors
  std::unordered_set<uintptr_t> read, written;

  void end_block() {
    for (const auto& [key, sectors] : accesses) current->touched += sectors.size();
    accesses.clear();
    times.clear();
  }
  void end() {
    if (!current) return;
    end_block();
    current->least += read.size() + written.size();
    read.clear();
    written.clear();
    current = nullptr;
  }
};
Counter& counter() {
  static auto* the = new Counter;
  return *the;
}

}  // namespace

void count_sectors(bool on) {
  take_traffic();
  counter().on = on;
}
bool counts_sectors() { return counter().on; }

std::map<std::string, Traffic> take_traffic() {
  counter().end();
  counter().launch = 0;
  return std::exchange(counter().kernels, {});
}

void count_access(const std::byte* p, size_t bytes, bool write, const void* from) {
  Counter& c = counter();
  const Running& r = running;
  if (c.launch != r.launch_began) {
    Traffic& kernel = c.kernels[r.kernel];
    &kernel == c.current ? c.end_block() : c.end();
    c.launch = r.launch_began;
    c.block = r.block_began;
    c.current = &kernel;
    ++kernel.launches;
  }
  if (c.block != r.block_began) {
    c.end_block();
    c.block = r.block_began;
  }
  const uint32_t thread = (r.thread - 1) % (blockDim.x * blockDim.y * blockDim.z);
  const uint32_t time = c.times[{thread, 0, from}]++;
  auto& sectors = c.accesses[{thread / kWarp, time, from}];
  const auto begin = reinterpret_cast<uintptr_t>(p);
  for (uintptr_t s = begin / kSector; s <= (begin + bytes - 1) / kSector; ++s) {
    if (std::ranges::find(sectors, s) == sectors.end()) sectors.push_back(s);
    (write ? c.written : c.read).insert(s);
  }
}

}  // namespace emulated
