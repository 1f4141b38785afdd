// SPDX-License-Identifier: Apache-2.0
// Replaces operator new of this test program by one that counts.
#include "tests/data/counting_new.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

namespace {
std::atomic<bool> counting{false};
std::atomic<int64_t> held{0}, most{0};
}  // namespace

void* operator new(std::size_t size) {
  void* const p = std::malloc(size ? size : 1);
  if (!p) throw std::bad_alloc();
  if (counting) {
    const int64_t now = held += static_cast<int64_t>(malloc_usable_size(p));
    if (now > most) most = now;
  }
  return p;
}
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept try {
  return operator new(size);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void operator delete(void* p) noexcept {
  if (counting && p) held -= static_cast<int64_t>(malloc_usable_size(p));
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept { operator delete(p); }
void operator delete[](void* p) noexcept { operator delete(p); }
void operator delete[](void* p, std::size_t) noexcept { operator delete(p); }

namespace compact::test {

PeakOfNew::PeakOfNew() {
  held = 0;
  most = 0;
  counting = true;
}
PeakOfNew::~PeakOfNew() { counting = false; }
int64_t PeakOfNew::peak() const { return most; }

TEST(PeakOfNew, SeesWhatWasHeldAtOnce) {
  const PeakOfNew counter;
  for (int i = 0; i < 10; ++i) {
    const std::unique_ptr<char[]> a(new char[100000]), b(new char[50000]);
    EXPECT_NE(a.get(), b.get());
  }
  EXPECT_GE(counter.peak(), 150000);
  EXPECT_LT(counter.peak(), 200000);
}

}  // namespace compact::test
