// SPDX-License-Identifier: Apache-2.0
// Large blocks of CPU memory, kept when they are freed and given out again.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>

namespace compact {

// A step frees and allocates the same sizes again and again. To map each block costs a page fault
// for every 4 KiB, 4 to 10 % of a step's CPU time. A heap that keeps all that was freed has no such
// faults, but it fragments where gradients are freed inside the backward pass, and then takes twice
// what lives at once. Here a freed block waits for a request of its size. Where waiting blocks and
// those in use together would take more than `most()`, a waiting block of another size is resized,
// whose pages stay, and other waiting blocks are unmapped. Linux; elsewhere, and under sanitizers,
// which watch the heap, blocks come from the heap.
class BlockCache {
 public:
  // The bytes that blocks may take, in use and waiting, where those in use take `used` at most.
  explicit BlockCache(std::function<size_t(size_t used)> most) : most_(std::move(most)) {}
  BlockCache(const BlockCache&) = delete;

  // Whether blocks of so many bytes are kept here; smaller ones come from the heap.
  static bool takes(size_t bytes);
  // Aligned to a page; null where the system has none left. To be freed with the same size.
  void* allocate(size_t bytes);
  void free(void* block, size_t bytes);
  // Bytes that are mapped: in use and waiting.
  size_t mapped() const;

  // To be held across a fork: the child of a fork inside allocate() could never lock it again.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  void* resized(size_t size);
  void unmap_one();

  std::function<size_t(size_t)> most_;
  mutable std::mutex mutex_;
  std::multimap<size_t, void*> waiting_;
  size_t waits_ = 0, used_ = 0, highest_ = 0;
};

}  // namespace compact
