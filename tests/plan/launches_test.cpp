// SPDX-License-Identifier: Apache-2.0
// Launches of planned steps, by counting by hand.
#include "compact/plan/launches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "compact/codecs/meta_device.h"
#include "compact/ops/functions/loss.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

using testing::ElementsAre;
using testing::Pair;

TEST(Launches, AreCountedByPart) {
  const Operation operations[] = {
      {.name = "fill", .moment = {Phase::kBatch, ""}},
      {.name = "embedding", .moment = {Phase::kForwardOf, "embedding"}},
      {.name = "mm", .moment = {Phase::kLoss, ""}},
      {.name = "mul", .moment = {Phase::kBackwardOf, "loss"}},
      {.name = "rms_norm_backward", .moment = {Phase::kBackwardOf, "layers.0"}, .launches = 3},
      {.name = "fold", .moment = {Phase::kBackwardBefore, "layers.0"}},
      {.name = "linalg_vector_norm", .moment = {Phase::kGradientNorm, ""}},
      {.name = "mul", .moment = {Phase::kOptimizer, ""}},
      {.name = "adamw", .moment = {Phase::kOptimizer, ""}},
      {.name = "adamw", .moment = {Phase::kOptimizer, ""}},
  };
  const StepLaunches launches = launches_of(operations);
  EXPECT_THAT(launches.parts, ElementsAre(Pair("forward", 1), Pair("loss", 2), Pair("backward", 3),
                                          Pair("gradient norm", 1), Pair("adamw", 2),
                                          Pair("fold", 1), Pair("optimizer", 1)));
  EXPECT_EQ(launches.total(), 11);
  EXPECT_EQ(str(launches),
            "launches 11: forward 1, loss 2, backward 3, gradient norm 1, adamw 2, fold 1, "
            "optimizer 1; the host waits for a step once, one step late");
}

class PlannedLaunches : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  void TearDown() override { set_meta_device(c10::kCPU); }

  // By part.
  static std::map<std::string, int64_t> of(PlanRequest r) {
    r.device = c10::kCUDA;
    std::vector<Operation> operations;
    plan_step(step_request(r), &operations);
    const auto parts = launches_of(operations).parts;
    return {parts.begin(), parts.end()};
  }
};

// A chunk takes 5 launches: logits, their loss and gradient, the gradients of head and hidden
// states. Several chunks take 2 more for the f32 sum, zeroed and cast. The loss itself takes 7:
// cast, sum, factor, product, cast, guard, the gradient that backward begins with. Backward
// multiplies both gradients, and keeps zero what no target reaches: which tokens have none, whether
// all, a fill of each.
TEST_F(PlannedLaunches, OfALossInChunks) {
  for (const auto& [chunk, chunks] : {std::pair(128, 4), {200, 3}, {256, 2}, {512, 1}}) {
    const PlanRequest r = small_request(cat("slot loss.logits = chunk:tokens=", chunk, "\n"),
                                        at::kBFloat16, {.batch = 4, .length = 128}, small_shape());
    const int64_t sum = chunks > 1 ? 2 : 0;
    EXPECT_EQ(of(r)["loss"], 5 * chunks + sum + 7 + 2 + 4) << chunk;
  }
}

// 128 samples of 256 tokens of a head as that of llama-350m.
TEST_F(PlannedLaunches, OfALargeLossAreFew) {
  LlamaConfig shape = small_shape(1);
  shape.block.hidden = 1024;
  shape.block.head_dim = 256;
  shape.vocab_size = 32000;
  const PlanRequest r = small_request("exact", at::kBFloat16, {.batch = 128, .length = 256}, shape);
  EXPECT_EQ(of(r)["loss"], 5 * 8 + 2 + 7 + 2 + 4);
}

// 15 parameters of one type: their norms, then those together, and the guard. One of AdamW, and 4
// for what gradients are scaled with.
TEST_F(PlannedLaunches, OfTheNormAndOfAdamW) {
  auto launches =
      of(small_request("exact", at::kBFloat16, {.batch = 4, .length = 128}, small_shape()));
  EXPECT_EQ(launches["gradient norm"], 3 + 3);
  EXPECT_EQ(launches["adamw"], 1);
  EXPECT_EQ(launches["fold"], 0);
  EXPECT_EQ(launches["optimizer"], 4);
}

}  // namespace
}  // namespace compact
