// SPDX-License-Identifier: Apache-2.0
// Large blocks of CPU memory, kept when they are freed and given out again.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>

namespace compact {

// A step frees and allocates the same sizes again and again. Mapping each block anew costs a page
// fault for every 4 KiB, 4 to 10 % of a step's CPU time; one heap without holes for what comes next
// grows beyond all that ever lived at once, to twice as much where gradients are freed inside the
// backward pass. Here a freed block waits for a request of its size. Where blocks that wait would
// take more than `most()` together with those in use, one of another size is resized in place of a
// new mapping (its pages stay), and others are unmapped. Linux; elsewhere, and under sanitizers,
// which watch the heap, blocks are those of the heap.
class BlockCache {
 public:
  // The bytes that blocks may take, in use and waiting, where those in use take `used` at most.
  explicit BlockCache(std::function<size_t(size_t used)> most) : most_(std::move(most)) {}
  BlockCache(const BlockCache&) = delete;

  // Whether blocks of so many bytes are kept here; smaller ones are the heap's.
  static bool takes(size_t bytes);
  // Aligned to a page; null where the system has none left. To be freed with the same size.
  void* allocate(size_t bytes);
  void free(void* block, size_t bytes);
  // Bytes that are mapped: in use and waiting.
  size_t mapped() const;

  // A fork in the middle of an allocation would leave the child a lock that nobody opens.
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
