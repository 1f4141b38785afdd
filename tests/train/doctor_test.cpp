// SPDX-License-Identifier: Apache-2.0
#include "compact/train/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "compact/train/version.h"

namespace compact {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Doctor, FindsEveryKernelRight) {
  std::ostringstream out;
  EXPECT_TRUE(doctor(out)) << out.str();
  for (const char* part : {version(), torch_version(), "threads", "memory", "f32 products",
                           "bf16 products", "attention", "self-test", "all kernels are right"}) {
    EXPECT_THAT(out.str(), HasSubstr(part));
  }
}

TEST(Doctor, ReadsInstructionSets) {
  EXPECT_THAT(
      instruction_sets("processor : 0\nflags\t\t: fpu avx2 amx_tile avx avx512\nflags : sve\n"),
      ElementsAre("avx", "avx2", "amx_tile"));
  EXPECT_THAT(instruction_sets("Features\t: fp asimd sve\n"), ElementsAre("asimd", "sve"));
  EXPECT_THAT(instruction_sets(""), ElementsAre());
}

}  // namespace
}  // namespace compact
