// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/doctor.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "compact/config/gpu_facts.h"
#include "compact/config/version.h"
#include "compact/kernels/kernels.h"

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

std::string row_of(const GpuFacts& facts, const std::string& name) {
  for (const auto& [row, value] : describe_gpu(facts)) {
    if (row == name) return value;
  }
  return "no row " + name;
}

TEST(GpuFacts, NameTheFirstThingThatIsMissing) {
  GpuFacts f;
  EXPECT_EQ(row_of(f, "training on"), "the CPU: no NVIDIA driver is loaded");
  EXPECT_EQ(row_of(f, "gpu driver"), "none");
  EXPECT_THAT(row_of(f, "nvcc"), HasSubstr("none found"));
  f.driver = "580.1";
  EXPECT_THAT(row_of(f, "training on"), HasSubstr("the CPU: this torch is for the CPU"));
  EXPECT_THAT(row_of(f, "torch's cuda"), HasSubstr("none"));
  f.torch_cuda = "13.0";
  EXPECT_THAT(row_of(f, "training on"), HasSubstr("13.0 sees no GPU under driver 580.1"));
  f.devices = 2;
  EXPECT_THAT(row_of(f, "training on"), HasSubstr("the CPU: this program has no kernels"));
  EXPECT_EQ(row_of(f, "gpu"), "2 (cuda:0 is used)");
  f.kernels = true;
  EXPECT_EQ(row_of(f, "training on"), "the GPU");
  EXPECT_EQ(row_of(f, "cuda kernels"), "built in");
  f.nvcc = "/cuda/bin/nvcc";
  EXPECT_EQ(row_of(f, "nvcc"), "/cuda/bin/nvcc");
}

TEST(GpuFacts, AgreeWithWhatTorchAndThisProgramHave) {
  const GpuFacts f = gpu_facts();
  EXPECT_EQ(f.devices > 0, at::globalContext().hasCUDA());
  EXPECT_TRUE(f.devices == 0 || !f.torch_cuda.empty());
  bool kernels = false;
  for (const kernels::Backend* b : kernels::backends()) {
    kernels |= std::string_view(b->name) == "cuda";
  }
  EXPECT_EQ(f.kernels, kernels);
}

}  // namespace
}  // namespace compact
