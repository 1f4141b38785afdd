// SPDX-License-Identifier: Apache-2.0
// The chunks of a loss: how large they are on which device, what they take, which ones a search
// may choose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/codecs/meta_device.h"
#include "compact/ops/functions/loss.h"
#include "compact/plan/variant.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

using testing::ElementsAre;

class LossChunks : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  void TearDown() override { set_meta_device(c10::kCPU); }

  // A usual chunk has 256 tokens on the CPU, 2,048 on CUDA.
  static PlanRequest request(int64_t tokens, c10::DeviceType device,
                             at::ScalarType type = at::kBFloat16) {
    LlamaConfig shape = small_shape(1);
    shape.vocab_size = 65536;
    shape.block.hidden = 256;
    shape.block.head_dim = 64;
    PlanRequest r = small_request("slot loss.logits = chunk\n", type, {1, tokens}, shape);
    r.device = device;
    return r;
  }
  static std::vector<int64_t> offered(const PlanRequest& r) {
    const StepRequest step = step_request(r);
    return Variants(SegmentGroups(step), step.step, "bf16", {}).chunks();
  }
  static StepPlan plan_with(PlanRequest r, int64_t chunk) {
    r.policy = Policy::parse(cat("slot loss.logits = chunk:tokens=", chunk, "\n"), "test");
    return plan_step(r);
  }
};

TEST_F(LossChunks, PlansSayHowManyTokensTheyHave) {
  for (const auto& [device, text] :
       {std::pair(c10::kCPU, "chunk:tokens=256"), std::pair(c10::kCUDA, "chunk:tokens=2048")}) {
    EXPECT_EQ(plan_step(request(512, device)).memory.slots.back().treatment, text);
  }
}

// In f32 the sum of several chunks is the gradient itself.
TEST_F(LossChunks, OneIsOfferedWhereItsLogitsTakeNoMoreThanASumInFloat) {
  EXPECT_THAT(offered(request(512, c10::kCPU)), ElementsAre(512, 256, 64));
  EXPECT_THAT(offered(request(513, c10::kCPU)), ElementsAre(256, 64));
  EXPECT_THAT(offered(request(512, c10::kCPU, at::kFloat)), ElementsAre(256, 64));
  EXPECT_THAT(offered(request(256, c10::kCPU)), ElementsAre(256, 64));
  EXPECT_THAT(offered(request(512, c10::kCUDA)), ElementsAre(2048, 64));
  EXPECT_THAT(offered(request(4096, c10::kCUDA)), ElementsAre(2048, 512, 64));
}

// All that holds every token is one chunk, whatever its size.
TEST_F(LossChunks, OneThatHoldsAllTokensIsEnough) {
  EXPECT_THAT(offered(request(64, c10::kCPU)), ElementsAre(256));
  EXPECT_THAT(offered(request(2, c10::kCPU, at::kFloat)), ElementsAre(256));
  const PlanRequest r = request(64, c10::kCPU);
  EXPECT_EQ(plan_with(r, 256).memory.moments, plan_with(r, 64).memory.moments);
}

// The search for a budget relies on this: it does not plan smaller chunks where the loss is not in
// the way.
TEST_F(LossChunks, SizesThatCutChangeNothingButTheLoss) {
  const auto beside_the_loss = [](const StepPlan& plan) {
    auto moments = plan.memory.moments;
    std::erase_if(moments, [](const auto& m) {
      return m.first.phase == Phase::kLoss || m.first.phase == Phase::kBackward ||
             m.first == StepMoment{Phase::kBackwardOf, "loss"};
    });
    return moments;
  };
  for (const c10::DeviceType device : {c10::kCPU, c10::kCUDA}) {
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
      const PlanRequest r = request(512, device, type);
      const StepPlan large = plan_with(r, 300), small = plan_with(r, 64);
      EXPECT_EQ(beside_the_loss(large), beside_the_loss(small));
      EXPECT_GT(large.memory.at({Phase::kLoss, ""}), small.memory.at({Phase::kLoss, ""}));
    }
  }
}

TEST_F(LossChunks, OneTakesLessTimeAndNoMoreMemoryThanTwo) {
  for (const c10::DeviceType device : {c10::kCPU, c10::kCUDA}) {
    const PlanRequest r = request(512, device);
    EXPECT_LE(plan_with(r, 512).memory.peak, plan_with(r, 256).memory.peak);
    const StepRequest step = step_request(r);
    const SegmentGroups groups(step);
    const Variants variants(groups, step.step, "bf16", {});
    EXPECT_EQ(variants.chunk_seconds(512, 1e9), 0);
    EXPECT_EQ(variants.chunk_seconds(256, 1e9), 2 * 12 * 65536 * 256 / 1e9);
  }
}

// Nothing of the head's size lives beside its f32 sum: the product adds to it.
TEST_F(LossChunks, OnCudaProductsAddToTheSum) {
  prepare_meta(c10::kCUDA);
  constexpr int64_t kTokens = 512, kWidth = 256, kWords = 8192, kChunk = 128;
  const auto options = at::device(at::kMeta).dtype(at::kBFloat16);
  const at::Tensor hidden = at::empty({kTokens, kWidth}, options).requires_grad_(true),
                   head = at::empty({kWords, kWidth}, options).requires_grad_(true),
                   targets = at::empty({kTokens}, options.dtype(at::kLong));
  reset_peak(at::kMeta);
  const int64_t before = live_bytes(at::kMeta);
  const at::Tensor loss = linear_cross_entropy(hidden, head, targets, 1, {kChunk});
  const int64_t hidden_gradient = kTokens * kWidth * 2, sum = kWords * kWidth * 4,
                statistics = 2 * kTokens * 4;
  // Logits of a chunk are half of the head's gradient in its own type, which is made of the sum.
  EXPECT_EQ(peak_bytes(at::kMeta) - before,
            hidden_gradient + sum + statistics / 2 + 4 + kWords * kWidth * 2);
}

}  // namespace
}  // namespace compact
