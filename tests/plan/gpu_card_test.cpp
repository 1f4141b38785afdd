// SPDX-License-Identifier: Apache-2.0
// The table of GPUs, and plans for one of them.
#include "compact/plan/gpu_card.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "tests/plan/requests.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using testing::HasSubstr;

TEST(GpuCard, IsFoundByWhatTheDriverCallsIt) {
  const std::pair<const char*, const char*> names[] = {
      {"NVIDIA H200", "h200"},
      {"NVIDIA H100 80GB HBM3", "h100"},
      {"NVIDIA H100 PCIe", "h100-pcie"},
      {"NVIDIA A100-SXM4-40GB", "a100"},
      {"NVIDIA A100-SXM4-80GB", "a100-80gb"},
      {"NVIDIA A10", "a10"},
      {"NVIDIA L4", "l4"},
      {"NVIDIA L40S", "l40s"},
      {"NVIDIA GeForce RTX 4090", "4090"},
  };
  for (const auto& [name, row] : names) {
    ASSERT_TRUE(find_gpu_card(name)) << name;
    EXPECT_EQ(find_gpu_card(name)->name, row) << name;
  }
  EXPECT_EQ(find_gpu_card("something else"), nullptr);
}

// A row that another one shadows would never be found.
TEST(GpuCard, EveryRowIsReached) {
  for (const GpuCard& card : gpu_cards()) {
    EXPECT_EQ(find_gpu_card(card.gpu().name), &card);
    EXPECT_EQ(&gpu_card(card.name), &card);
    EXPECT_GT(card.half_tflops, card.float_tflops) << card.name;
    EXPECT_GT(card.mebibytes, 8000) << card.name;
    EXPECT_GE(card.capability, 80) << card.name;
    EXPECT_GT(card.processors, 20) << card.name;
    EXPECT_LT(card.host_gigabytes, 1000 * card.terabytes_a_second) << card.name;
  }
}

TEST(GpuCard, ShortNamesAreOfAnyCase) {
  EXPECT_EQ(gpu_card("H200").words, "H200");
  EXPECT_EQ(gpu_card("A100-80GB").words, "A100-SXM4-80GB");
  EXPECT_THAT(error_of([&] { gpu_card("h20"); }),
              testing::AllOf(HasSubstr("no GPU `h20`"), HasSubstr("compact list gpus")));
  EXPECT_EQ(gpu_card("NVIDIA H100 80GB HBM3").name, "h100");
  EXPECT_EQ(gpu_card("RTX 4090").name, "4090");
}

TEST(GpuCard, SharedMemoryIsThatOfItsKind) {
  EXPECT_EQ(gpu_card("a100").gpu().shared_memory, 163 << 10);
  EXPECT_EQ(gpu_card("h200").gpu().shared_memory, 227 << 10);
  EXPECT_EQ(gpu_card("b200").gpu().shared_memory, 227 << 10);
  for (const char* name : {"3090", "4090", "5090", "l40s", "a10"}) {
    EXPECT_EQ(gpu_card(name).gpu().shared_memory, 99 << 10) << name;
  }
}

TEST(GpuCard, SaysWhichPathProductsInF32Take) {
  EXPECT_EQ(float_products(gpu_card("h200"), "highest"),
            "f32 at 67 TFLOP/s; --matmul_precision high: TF32 at 494.5 TFLOP/s");
  EXPECT_EQ(float_products(gpu_card("a100"), "high"),
            "TF32 at 156 TFLOP/s; --matmul_precision highest: f32 at 19.5 TFLOP/s");
}

class PlannedCard : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  void TearDown() override {
    kernels::set_planned_gpu(before_);
    set_meta_device(c10::kCPU);
  }
  static StepPlan plan(const char* card, const LlamaConfig& shape) {
    kernels::set_planned_gpu(gpu_card(card).gpu());
    PlanRequest r =
        small_request("slot * = keep\ngrad layers.*.mlp.down = project:rank=8,type=srht\n",
                      at::kBFloat16, {1, 16}, shape);
    r.device = c10::kCUDA;
    return plan_step(r);
  }

 private:
  const kernels::Gpu before_ = kernels::planned_gpu();
};

// The width of LLaMA-70B's MLPs, which the matrix after them reads.
TEST_F(PlannedCard, RefusesProjectionsOfRowsThatItCannotHold) {
  LlamaConfig shape = small_shape(1);
  shape.block.intermediate = 28672;
  EXPECT_GT(plan("h100", shape).memory.peak, 0);
  EXPECT_THAT(error_of([&] { plan("4090", shape); }),
              testing::AllOf(HasSubstr("a row of 28672"),
                             HasSubstr("a block of NVIDIA RTX 4090 has 101376")));
  shape.block.intermediate = 23808;
  EXPECT_GT(plan("4090", shape).memory.peak, 0);
}

// One for the thread that calls and one for autograd's, in the peak as in what is reserved.
TEST_F(PlannedCard, EveryThreadHasAWorkspaceOfTheMatrixLibrary) {
  constexpr int64_t kSmall = (8 << 20) + (128 << 10), kLarge = 32 << 20;
  const StepPlan older = plan("a100", small_shape(1)), hopper = plan("h100", small_shape(1));
  EXPECT_EQ(older.memory.matrix_library, 2 * kSmall);
  EXPECT_EQ(hopper.memory.matrix_library, 2 * kLarge);
  EXPECT_EQ(hopper.memory.peak - older.memory.peak, 2 * (kLarge - kSmall));
  EXPECT_EQ(hopper.memory.peak, hopper.memory.fixed() + hopper.memory.at_peak.total);
  EXPECT_EQ(hopper.memory.at(hopper.memory.at_peak.moment), hopper.memory.peak);
  EXPECT_GE(hopper.reserved, hopper.memory.peak);
  // Both small ones lie in one segment of 20 MiB.
  EXPECT_EQ(hopper.reserved - older.reserved, 2 * kLarge - (20 << 20));
}

TEST_F(PlannedCard, DeterministicProductsTakeTheLargeWorkspaceOnEveryGpu) {
  at::globalContext().setDeterministicAlgorithms(true, false);
  EXPECT_EQ(plan("a100", small_shape(1)).memory.matrix_library, 64 << 20);
  at::globalContext().setDeterministicAlgorithms(false, false);
}

// 24 GiB as sold are 23.6 to a process, of which its context takes some.
TEST(GpuCard, HasLessThanItIsSoldWith) {
  const std::pair<const char*, double> usable[] = {
      {"4090", 23.6}, {"h100", 79.2}, {"h200", 140}, {"a10g", 22.1}, {"l40s", 44.6}};
  for (const auto& [name, gibibytes] : usable) {
    const double planned = static_cast<double>(gpu_card(name).memory_bytes()) * 0x1p-30;
    EXPECT_LT(planned, gibibytes) << name;
    EXPECT_GT(planned, gibibytes - 1.2) << name;
  }
}

}  // namespace
}  // namespace compact
