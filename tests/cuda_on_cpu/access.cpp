// SPDX-License-Identifier: Apache-2.0
// The functions that g++ -fsanitize=thread calls at every access to memory, instead of its library:
// checks of emulated kernels. A cell for each byte remembers who wrote and read it last, and when.
#include <link.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "emulator.h"
#include "sectors.h"

namespace emulated {
namespace {

constexpr uint32_t kMany = 0xffffffffu;
struct Cell {
  uint32_t writer, wrote, write_fence;  // thread, time, fences of its warp
  uint32_t reader, read, read_fence;    // reader kMany: several at this time
  bool read_by_blocks;                  // by more than one in this launch
  bool guarded;
};

struct Region {
  const std::byte *begin = nullptr, *end = nullptr;
  std::vector<Cell> cells;
  bool has(const std::byte* p) const { return begin <= p && p < end; }
};

struct Accesses {
  std::map<const std::byte*, Region> memory;  // of cudaMalloc, by its begin
  Region* last = nullptr;
  Region fixed_shared, shared;
  std::vector<std::pair<const std::byte*, const std::byte*>> constants;
  const std::byte* loaded_at = nullptr;
  uint32_t launch = 0;
  // A second write to a place by another thread, which may have left it as it was.
  const std::byte* suspect = nullptr;
  size_t suspect_bytes = 0;
  std::byte before[16];
  std::string suspicion;
};
Accesses* accesses = nullptr;

// The program's thread_local variables (kernels' __shared__ ones) and what it may not write.
int find_sections(dl_phdr_info* info, size_t, void* to) {
  auto& a = *static_cast<Accesses*>(to);
  a.loaded_at = reinterpret_cast<const std::byte*>(info->dlpi_addr);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& h = info->dlpi_phdr[i];
    const auto* begin = reinterpret_cast<const std::byte*>(info->dlpi_addr + h.p_vaddr);
    if (h.p_type == PT_LOAD && !(h.p_flags & PF_W))
      a.constants.push_back({begin, begin + h.p_memsz});
    if (h.p_type == PT_GNU_RELRO) a.constants.push_back({begin, begin + h.p_memsz});
    if (h.p_type == PT_TLS) {
      a.fixed_shared.begin = static_cast<const std::byte*>(info->dlpi_tls_data);
      a.fixed_shared.end = a.fixed_shared.begin + h.p_memsz;
      a.fixed_shared.cells.resize(h.p_memsz);
    }
  }
  return 1;  // the program comes first
}

std::string thread_text(uint32_t thread) {
  const uint32_t block_size = blockDim.x * blockDim.y * blockDim.z;
  return thread == kMany ? "several threads"
                         : "thread " + std::to_string((thread - 1) % block_size) + " of block " +
                               std::to_string((thread - 1) / block_size);
}

// The access that runs, for messages: where it is in the program, for addr2line -e PROGRAM.
struct Access {
  const std::byte *from, *p;
  size_t bytes;
  bool write;
};
std::string text_of(const Access& x) {
  char text[96];
  std::snprintf(text, sizeof(text), "%s %zu bytes (at 0x%zx)", x.write ? "writes" : "reads",
                x.bytes, static_cast<size_t>(x.from - accesses->loaded_at));
  return text;
}

void settle() {
  Accesses& a = *accesses;
  if (!a.suspect) return;
  const std::byte* p = std::exchange(a.suspect, nullptr);
  if (std::memcmp(p, a.before, a.suspect_bytes) != 0) stop(a.suspicion);
}

void allocated(void* p, size_t bytes) {
  Region& r = accesses->memory[static_cast<std::byte*>(p)];
  r.begin = static_cast<std::byte*>(p);
  r.end = r.begin + bytes;
  r.cells.assign(bytes, {});
}
void released(void* p) {
  accesses->memory.erase(static_cast<std::byte*>(p));
  accesses->last = nullptr;
}

Region* region_of(const std::byte* p) {
  Accesses& a = *accesses;
  if (a.last && a.last->has(p)) return a.last;
  auto after = a.memory.upper_bound(p);
  if (after == a.memory.begin()) return nullptr;
  Region& r = std::prev(after)->second;
  return r.has(p) ? a.last = &r : nullptr;
}

void guarded(void* p, size_t bytes, bool on) {
  auto* begin = static_cast<std::byte*>(p);
  Region* region = region_of(begin);
  for (size_t i = 0; region && i < bytes; ++i)
    region->cells[begin + i - region->begin].guarded = on;
}

// Whether what another thread did at time `then` is not ordered before now.
bool races(uint32_t other, uint32_t then, uint32_t fences) {
  const Running& r = running;
  if (then < r.launch_began || other == r.thread) return false;
  if (then < r.block_began) return true;  // another block
  if (then < r.now) return false;         // a barrier between
  const uint32_t block_size = blockDim.x * blockDim.y * blockDim.z;
  const bool same_warp =
      other != kMany && (other - 1) % block_size / 32 == (r.thread - 1) % block_size / 32;
  return !(same_warp && fences < r.fences);
}

void check(Region& region, const Access& x, bool in_shared) {
  const Running& r = running;
  Accesses& a = *accesses;
  const uint32_t since = in_shared ? r.block_began : r.launch_began;
  for (size_t i = 0; i < x.bytes; ++i) {
    Cell& c = region.cells[static_cast<size_t>(x.p + i - region.begin)];
    if (c.guarded) stop(text_of(x) + ", not all of them the tensor's");
    const bool written = c.wrote >= since, read = c.read >= since;
    if (in_shared && !x.write && !written) stop(text_of(x) + " of shared memory that nobody wrote");
    if (written && races(c.writer, c.wrote, c.write_fence) && !a.suspect) {
      const auto text =
          text_of(x) + " that " + thread_text(c.writer) + " writes, no barrier between";
      if (!x.write || x.bytes > sizeof(a.before)) stop(text);
      a.suspect = x.p;
      a.suspect_bytes = x.bytes;
      std::memcpy(a.before, x.p, x.bytes);
      a.suspicion = text;
    }
    if (x.write) {
      if (read && (c.read_by_blocks || races(c.reader, c.read, c.read_fence))) {
        stop(text_of(x) + " that " + thread_text(c.reader) + " reads, no barrier between");
      }
      c.writer = r.thread;
      c.wrote = r.now;
      c.write_fence = r.fences;
    } else {
      c.read_by_blocks = read && !in_shared && (c.read_by_blocks || c.read < r.block_began);
      c.reader = c.read == r.now && c.reader != r.thread ? kMany : r.thread;
      c.read = r.now;
      c.read_fence = r.fences;
    }
  }
}

void access(const void* at, size_t bytes, bool write, bool aligned, const void* from) {
  if (!running.inside) return;
  struct Pause {  // no checks of what runs here
    Pause() { running.inside = false; }
    ~Pause() { running.inside = true; }
  } pause;
  const Access x = {static_cast<const std::byte*>(from), static_cast<const std::byte*>(at), bytes,
                    write};
  const Running& r = running;
  if (r.stack <= x.p && x.p < r.stack_end) return;
  Accesses& a = *accesses;
  settle();
  const auto own = [&](const auto& variable) {
    const auto* v = reinterpret_cast<const std::byte*>(&variable);
    return v <= x.p && x.p < v + sizeof(variable);
  };
  if (own(threadIdx) || own(blockIdx) || own(blockDim) || own(gridDim)) return;
  if (aligned && reinterpret_cast<uintptr_t>(x.p) % bytes != 0) stop(text_of(x) + ", misaligned");
  if (a.launch != r.launch_began) {
    a.launch = r.launch_began;
    a.shared.begin = r.shared;
    a.shared.end = r.shared_end;
    a.shared.cells.assign(static_cast<size_t>(r.shared_end - r.shared), {});
  }
  for (Region* region : {&a.shared, &a.fixed_shared}) {
    if (!region->has(x.p)) continue;
    if (x.p + bytes > region->end) stop(text_of(x) + ", beyond shared memory");
    return check(*region, x, true);
  }
  if (Region* region = region_of(x.p)) {
    if (x.p + bytes > region->end) stop(text_of(x) + ", beyond what is allocated");
    if (counts_sectors()) count_access(x.p, bytes, write, from);
    return check(*region, x, false);
  }
  if (r.stacks <= x.p && x.p < r.stacks_end) stop(text_of(x) + " of another thread's own");
  if (r.host_memory) return;
  if (!write) {
    for (const auto& [begin, end] : a.constants) {
      if (begin <= x.p && x.p + bytes <= end) return;
    }
  }
  stop(text_of(x) + " that are not the device's");
}

const bool installed = [] {
  accesses = new Accesses;
  dl_iterate_phdr(find_sections, accesses);
  watcher = {allocated, released, guarded, settle};
  return true;
}();

}  // namespace
}  // namespace emulated

#define COMPACT_ACCESS(name, bytes, write, aligned)                          \
  void __tsan_##name(void* p) {                                              \
    emulated::access(p, bytes, write, aligned, __builtin_return_address(0)); \
  }
#define COMPACT_ACCESSES(bytes)                              \
  COMPACT_ACCESS(read##bytes, bytes, false, true)            \
  COMPACT_ACCESS(write##bytes, bytes, true, true)            \
  COMPACT_ACCESS(volatile_read##bytes, bytes, false, true)   \
  COMPACT_ACCESS(volatile_write##bytes, bytes, true, true)   \
  COMPACT_ACCESS(unaligned_read##bytes, bytes, false, false) \
  COMPACT_ACCESS(unaligned_write##bytes, bytes, true, false)
extern "C" {
COMPACT_ACCESSES(1)
COMPACT_ACCESSES(2)
COMPACT_ACCESSES(4)
COMPACT_ACCESSES(8)
COMPACT_ACCESSES(16)
void __tsan_read_range(void* p, size_t bytes) {
  emulated::access(p, bytes, false, false, __builtin_return_address(0));
}
void __tsan_write_range(void* p, size_t bytes) {
  emulated::access(p, bytes, true, false, __builtin_return_address(0));
}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
