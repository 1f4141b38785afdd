// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/memory/memory.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <utility>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/ops/memory/memory_trace.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

class Memory : public testing::Test {
 protected:
  void SetUp() override {
    install_counting_allocator();
    install_counting_allocator();  // does nothing
    start_ = live();
  }
  void TearDown() override { limit_cpu_bytes(std::nullopt); }
  static int64_t live() { return live_bytes(at::kCPU); }
  int64_t start_ = 0;
};

TEST_F(Memory, CountsWhatWasAskedFor) {
  for (const int64_t n : {0, 1, 63, 64, 65, 4097, 1 << 20, (1 << 22) + 3}) {
    const at::Tensor t = at::empty({n}, at::kByte);
    EXPECT_EQ(live() - start_, n);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data_ptr()) % 64, 0u);
    if (n) t.fill_(7);
    at::Tensor copy = t.clone();
    EXPECT_EQ(live() - start_, 2 * n);
    copy.resize_({n + 5});
    EXPECT_EQ(live() - start_, 2 * n + 5);
  }
  EXPECT_EQ(live(), start_);
}

TEST_F(Memory, PeakIsTheMostSinceItsReset) {
  reset_peak(at::kCPU);
  EXPECT_EQ(peak_bytes(at::kCPU), start_);
  { const at::Tensor a = at::empty({1000}, at::kByte), b = at::empty({500}, at::kByte); }
  const at::Tensor c = at::empty({1200}, at::kByte);
  EXPECT_EQ(peak_bytes(at::kCPU) - start_, 1500);
  reset_peak(at::kCPU);
  EXPECT_EQ(peak_bytes(at::kCPU) - start_, 1200);
}

// Meta tensors that stand for host memory are in no count and no trace of the device.
TEST_F(Memory, HostMemoryOfPlansIsCountedByItself) {
  reset_peak(at::kMeta);
  const int64_t before = live_bytes(at::kMeta);
  start_trace(c10::kMeta);
  {
    std::optional<MetaOnHost> host(std::in_place);
    const at::Tensor a = at::empty({1000}, at::device(at::kMeta).dtype(at::kByte));
    { const at::Tensor b = at::empty({3}, at::device(at::kMeta).dtype(at::kByte)); }
    host.reset();
    const at::Tensor c = at::empty({500}, at::device(at::kMeta).dtype(at::kByte));
    EXPECT_EQ(live_bytes(at::kMeta) - before, 500);
  }
  EXPECT_EQ(live_bytes(at::kMeta), before);
  EXPECT_EQ(stop_trace().events.size(), 2u);
  EXPECT_EQ(peak_host_bytes().asked, 1003);
  EXPECT_EQ(peak_host_bytes().pinned, 1024 + 4);
  reset_peak(at::kMeta);
  EXPECT_EQ(peak_host_bytes().asked, 0);
}

TEST_F(Memory, AnAllocationPastTheLimitThrows) {
  const at::Tensor held = at::empty({1000}, at::kByte);
  limit_cpu_bytes(live() + 100);
  reset_peak(at::kCPU);
  const at::Tensor fits = at::empty({100}, at::kByte);
  try {
    at::empty({1}, at::kByte);
    FAIL() << "no exception";
  } catch (const OutOfMemory& e) {
    EXPECT_EQ(e.requested, 1);
    EXPECT_EQ(e.live, start_ + 1100);
    EXPECT_EQ(e.limit, start_ + 1100);
    EXPECT_THAT(e.what(), testing::HasSubstr("out of memory"));
    EXPECT_THAT(e.what(), testing::HasSubstr("limit"));
  }
  EXPECT_EQ(live() - start_, 1100);
  EXPECT_EQ(peak_bytes(at::kCPU) - start_, 1100);  // what was refused is in no figure
  limit_cpu_bytes(std::nullopt);
  EXPECT_NO_THROW(at::empty({1 << 20}, at::kByte));
}

TEST_F(Memory, WhatTheSystemRefusesThrows) {
  EXPECT_THROW(at::empty({int64_t{1} << 60}, at::kByte), OutOfMemory);
  EXPECT_EQ(live(), start_);
}

TEST_F(Memory, CountsFromManyThreads) {
  reset_peak(at::kCPU);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([i] {
      std::vector<at::Tensor> held;
      for (int j = 0; j < 2000; ++j) {
        held.push_back(at::empty({(i + 1) * (j % 50)}, at::kByte));
        if (held.size() > 10) held.erase(held.begin());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(live(), start_);
  EXPECT_GT(peak_bytes(at::kCPU), start_);
  EXPECT_LE(peak_bytes(at::kCPU), start_ + 8 * 11 * 8 * 50);
}

TEST_F(Memory, MetaTensorsAreNotOnTheCpu) {
  const at::Tensor t = at::empty({int64_t{1} << 50}, at::kMeta);
  EXPECT_EQ(live(), start_);
  synchronize(at::kCPU);
}

TEST(CudaMemory, FractionOfTheDevice) {
  constexpr int64_t kTotal = int64_t{80} << 30;
  EXPECT_EQ(memory_fraction(std::nullopt, kTotal), 1);
  EXPECT_EQ(memory_fraction(kTotal, kTotal), 1);
  EXPECT_EQ(memory_fraction(kTotal / 4, kTotal), .25);
  // The limit that the allocator makes of it, by rounding down, is no more than ours.
  for (const int64_t limit : {int64_t{1}, int64_t{3}, kTotal / 3, kTotal / 7 * 5, kTotal - 1}) {
    const double bytes = memory_fraction(limit, kTotal) * static_cast<double>(kTotal);
    EXPECT_NEAR(bytes, static_cast<double>(limit), 1);
    EXPECT_LE(static_cast<int64_t>(bytes), limit);
  }
  EXPECT_THROW(memory_fraction(0, kTotal), InputError);
  EXPECT_THROW(memory_fraction(-1, kTotal), InputError);
  EXPECT_THAT(error_of([&] { memory_fraction(kTotal + 1, kTotal); }),
              testing::HasSubstr("80.0 GiB"));
}

}  // namespace
}  // namespace compact
