// SPDX-License-Identifier: Apache-2.0
#include "compact/codecs/launch.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <thread>

#include "compact/base/check.h"

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuardImpl<DeviceType::PrivateUse1>);
}  // namespace c10::impl

namespace compact {
namespace {

TEST(Launch, NamesTypes) {
  EXPECT_EQ(type_of(at::empty({0}, at::kFloat)), kernels::Type::kFloat32);
  EXPECT_EQ(type_of(at::empty({0}, at::kBFloat16)), kernels::Type::kBFloat16);
  for (const at::ScalarType type : {at::kDouble, at::kHalf, at::kLong, at::kBool}) {
    EXPECT_THROW(type_of(at::empty({1}, type)), InputError);
  }
}

TEST(Launch, TakesTheBackendOfTheDevice) {
  EXPECT_EQ(backend_of(at::empty({1})).device, kernels::Device::kCpu);
  EXPECT_EQ(backend_of(at::empty({1}, at::kMeta)).device, kernels::Device::kMeta);
}

// Every element once, in ranges that are multiples of the grain.
TEST(Launch, CoversTheRange) {
  const kernels::Launch launch = launch_for(at::empty({1}));
  for (const int64_t n : {0, 1, 7, 64, 1000}) {
    for (const int64_t grain : {0, 1, 3, 64, 5000}) {
      std::vector<int> seen(static_cast<size_t>(n), 0);
      std::mutex mutex;
      launch.parallel_for(n, grain, [&](int64_t begin, int64_t end) {
        const std::lock_guard lock(mutex);
        EXPECT_LT(begin, end);
        if (end != n) {
          EXPECT_GE(end - begin, grain);
        }
        for (int64_t i = begin; i < end; ++i) ++seen[i];
      });
      EXPECT_THAT(seen, testing::Each(1)) << n << " by " << grain;
    }
  }
}

// The third of eight devices that are only numbers, while the first is the current one.
TEST(Launch, MakesTheDeviceTheCurrentOne) {
  const c10::impl::VirtualGuardImpl devices(c10::kPrivateUse1);
  const at::Device third(c10::kPrivateUse1, 2);
  int launches = 0;
  const auto run = [&](const kernels::Launch&) {
    ++launches;
    return devices.getDevice().index();
  };
  EXPECT_EQ(run(DeviceLaunch(kernels::serial(), third)), 2);
  EXPECT_EQ(devices.getDevice().index(), 0);
  EXPECT_EQ(run(DeviceLaunch(kernels::serial(), at::kCPU)), 0);
  EXPECT_EQ(run(DeviceLaunch(kernels::serial(), at::kMeta)), 0);
  EXPECT_EQ(launches, 3);
}

TEST(Launch, RunsOnSeveralThreads) {
#if !defined(__clang__)
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  launch_for(at::empty({1})).parallel_for(1000, 1, [&](int64_t, int64_t) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  at::set_num_threads(before);
  EXPECT_EQ(threads.size(), 2u);
#else
  GTEST_SKIP() << "built by clang, whose OpenMP is not torch's: kernels run serially";
#endif
}

}  // namespace
}  // namespace compact
