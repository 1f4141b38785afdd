// SPDX-License-Identifier: Apache-2.0
// Which device a run takes, and the same bits from run to run.
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "compact/base/check.h"
#include "compact/config/precision.h"
#include "compact/tasks/setup.h"

namespace compact {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

constexpr Accelerator kNothing{}, kGpuAlone{.gpu = true}, kKernelsAlone{.kernels = true},
    kBoth{.gpu = true, .kernels = true};

TEST(Device, AutoTakesTheGpuOnlyWithKernelsForIt) {
  std::vector<std::string> warnings;
  EXPECT_TRUE(device_of("auto", kBoth, warnings).is_cuda());
  EXPECT_TRUE(device_of("auto", kNothing, warnings).is_cpu());
  EXPECT_TRUE(device_of("auto", kKernelsAlone, warnings).is_cpu());
  EXPECT_THAT(warnings, IsEmpty());
  EXPECT_TRUE(device_of("auto", kGpuAlone, warnings).is_cpu());
  EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("no kernels"), HasSubstr("scripts/train.sh"),
                                          HasSubstr("preset `cuda`"))));
}

TEST(Device, ByNameItIsThatOneOrAnError) {
  std::vector<std::string> warnings;
  for (const Accelerator& there : {kNothing, kGpuAlone, kKernelsAlone, kBoth}) {
    EXPECT_TRUE(device_of("cpu", there, warnings).is_cpu());
  }
  EXPECT_EQ(device_of("cuda", kBoth, warnings), at::Device(at::kCUDA, 0));
  const auto taken = [&](const Accelerator& there) {
    return [&warnings, there] { device_of("cuda", there, warnings); };
  };
  for (const Accelerator& there : {kNothing, kGpuAlone}) {
    EXPECT_THAT(taken(there), ThrowsMessage<InputError>(HasSubstr("no kernels for CUDA")));
  }
  EXPECT_THAT(taken(kKernelsAlone), ThrowsMessage<InputError>(HasSubstr("sees no GPU")));
  EXPECT_THAT([&] { device_of("tpu", kBoth, warnings); },
              ThrowsMessage<InputError>(HasSubstr("`tpu`")));
  EXPECT_THAT(warnings, IsEmpty());
}

TEST(Device, PlansNeedNoGpu) {
  std::vector<std::string> warnings;
  EXPECT_EQ(planned_device_of("cuda", warnings), c10::kCUDA);
  EXPECT_EQ(planned_device_of("cpu", warnings), c10::kCPU);
  EXPECT_EQ(planned_device_of("auto", warnings), device_of("auto", warnings).type());
}

TEST(Deterministic, IsForGpus) {
  at::Context& context = at::globalContext();
  set_deterministic(true, c10::kCPU);
  EXPECT_FALSE(context.deterministicAlgorithms());
  set_deterministic(true, c10::kCUDA);
  EXPECT_TRUE(context.deterministicAlgorithms());
  EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly());
  EXPECT_TRUE(context.deterministicCuDNN());
  EXPECT_STREQ(std::getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
  try {
    context.alertNotDeterministic("some_backward_cuda");
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& e) {
    EXPECT_THAT(
        not_deterministic(e).value_or(""),
        AllOf(HasSubstr("--deterministic"), HasSubstr("some_backward_cuda"), Not(HasSubstr("\n"))));
  }
  EXPECT_FALSE(not_deterministic(std::runtime_error("another")));
  set_deterministic(false, c10::kCUDA);
  EXPECT_FALSE(context.deterministicAlgorithms());
  context.alertNotDeterministic("some_backward_cuda");
}

}  // namespace
}  // namespace compact
