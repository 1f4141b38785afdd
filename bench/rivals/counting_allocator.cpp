// SPDX-License-Identifier: Apache-2.0
// Counts what torch allocates on the CPU, for programs that are not ours: loaded into a Python
// process (ctypes) after torch. The bytes asked for are counted; memory comes from torch's own CPU
// allocation, so that speed stays what it was. What was allocated before install() is not counted.
#include <c10/core/Allocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <cstdint>
#include <new>

namespace {

constexpr size_t kHeader = 64;  // holds the size and keeps torch's alignment

std::atomic<int64_t> live_bytes{0}, peak_bytes{0};

void count(int64_t bytes) {
  const int64_t now = live_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t peak = peak_bytes.load(std::memory_order_relaxed);
  while (now > peak && !peak_bytes.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

void release(void* data) {
  if (!data) return;
  char* block = static_cast<char*>(data) - kHeader;
  count(-*std::launder(reinterpret_cast<int64_t*>(block)));
  c10::free_cpu(block);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::kCPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    char* block = static_cast<char*>(c10::alloc_cpu(bytes + kHeader));
    new (block) int64_t(static_cast<int64_t>(bytes));
    count(static_cast<int64_t>(bytes));
    return {block + kHeader, block + kHeader, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

extern "C" {

// Makes this torch's CPU allocator, above every other one.
void install() {
  static CountingAllocator allocator;
  c10::SetAllocator(c10::kCPU, &allocator, 100);
}
// Bytes allocated now, and the most since reset().
int64_t live() { return live_bytes.load(); }
int64_t peak() { return peak_bytes.load(); }
void reset() { peak_bytes.store(live_bytes.load()); }

}  // extern "C"
