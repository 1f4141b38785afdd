// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/memory/block_cache.h"

#include <algorithm>
#include <iterator>

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COMPACT_MAPS_BLOCKS
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace compact {

#ifdef COMPACT_MAPS_BLOCKS
namespace {

constexpr size_t kLarge = size_t{1} << 20;

size_t in_pages(size_t bytes) {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

bool BlockCache::takes(size_t bytes) { return bytes >= kLarge; }

// The waiting block whose size is nearest, which becomes one of this size.
void* BlockCache::resized(size_t size) {
  auto best = waiting_.lower_bound(size);
  if (best != waiting_.begin()) {
    const auto smaller = std::prev(best);
    if (best == waiting_.end() || size - smaller->first < best->first - size) best = smaller;
  }
  void* const block = mremap(best->second, best->first, size, MREMAP_MAYMOVE);
  if (block == MAP_FAILED) return nullptr;
  waits_ -= best->first;
  waiting_.erase(best);
  return block;
}

void BlockCache::unmap_one() {
  const auto largest = std::prev(waiting_.end());
  munmap(largest->second, largest->first);
  waits_ -= largest->first;
  waiting_.erase(largest);
}

void* BlockCache::allocate(size_t bytes) {
  const size_t size = in_pages(bytes);
  const std::lock_guard lock(mutex_);
  void* block = nullptr;
  if (const auto same = waiting_.find(size); same != waiting_.end()) {
    block = same->second;
    waits_ -= size;
    waiting_.erase(same);
  } else {
    const size_t most = std::max(most_(std::max(highest_, used_ + size)), used_ + size);
    if (!waiting_.empty() && used_ + size + waits_ > most) block = resized(size);
    while (!waiting_.empty() && used_ + size + waits_ > most) unmap_one();
    const auto map = [&] {
      return mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    };
    if (!block) block = map();
    while (block == MAP_FAILED && !waiting_.empty()) {
      unmap_one();
      block = map();
    }
    if (block == MAP_FAILED) return nullptr;
  }
  used_ += size;
  highest_ = std::max(highest_, used_);
  return block;
}

void BlockCache::free(void* block, size_t bytes) {
  const size_t size = in_pages(bytes);
  const std::lock_guard lock(mutex_);
  used_ -= size;
  waits_ += size;
  waiting_.emplace(size, block);
}
#else
bool BlockCache::takes(size_t) { return false; }
void* BlockCache::allocate(size_t) { return nullptr; }
void BlockCache::free(void*, size_t) {}
#endif

size_t BlockCache::mapped() const {
  const std::lock_guard lock(mutex_);
  return used_ + waits_;
}

}  // namespace compact
