// SPDX-License-Identifier: Apache-2.0
// Predicted times of steps on a GPU.
#include "compact/plan/step_time.h"

#include <gtest/gtest.h>

#include "compact/codecs/meta_device.h"
#include "compact/models/resnet/resnet.h"
#include "compact/plan/gpu_card.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

const GpuRates kRates{.half = 1000, .single = 100, .bytes = 10, .host = 1};

TEST(StepTime, IsTheLongerOfProductsAndBytes) {
  const Operation operations[] = {
      {.name = "mm", .products = 5000, .type = at::kBFloat16, .bytes = 20},  // 5 s of 2
      {.name = "mm", .products = 1000, .type = at::kFloat, .bytes = 20},     // 10 s of 2
      {.name = "mm", .products = 1000, .type = at::kBFloat16, .bytes = 30},  // 3 s of 1
      {.name = "add", .bytes = 40},
  };
  const StepTime time = step_time(operations, kRates);
  EXPECT_EQ(time.parts[0].seconds, 5 + 10 + 3);
  EXPECT_EQ(time.parts[1].seconds, 4);
  EXPECT_EQ(time.total().seconds, 22);
  EXPECT_EQ(time.total().products, 7000);
  EXPECT_EQ(time.total().bytes, 110);
}

TEST(StepTime, EveryOperationIsInOnePart) {
  const Operation operations[] = {
      {.name = "mm", .products = 1000, .type = at::kBFloat16},
      {.name = "add", .bytes = 20},
      {.name = "quantize", .codec = true, .bytes = 30},
      {.name = "copy_", .codec = true, .bytes = 4, .host = true},
      {.name = "mm", .moment = {Phase::kLoss, ""}, .products = 5000, .type = at::kBFloat16},
      {.name = "mul", .moment = {Phase::kBackwardOf, "loss"}, .bytes = 60},
      {.name = "norm", .moment = {Phase::kGradientNorm, ""}, .bytes = 70},
      {.name = "srht", .moment = {Phase::kOptimizer, ""}, .codec = true, .bytes = 80},
  };
  const StepTime time = step_time(operations, kRates);
  const double seconds[] = {1, 2, 3 + 4, 5 + 6, 7 + 8};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(time.parts[i].seconds, seconds[i]) << time.parts[i].name;
}

GpuRates rates_of(const GpuCard& card) {
  return {.half = card.half_tflops * 1e12,
          .single = card.float_tflops * 1e12,
          .bytes = card.terabytes_a_second * 1e12,
          .host = card.host_gigabytes * 1e9};
}

class PredictedTime : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  void TearDown() override { set_meta_device(c10::kCPU); }

  static StepTime time_of(StepRequest r, const GpuCard& card = gpu_card("h200")) {
    r.device = c10::kCUDA;
    std::vector<Operation> operations;
    plan_step(r, &operations);
    return step_time(operations, rates_of(card));
  }
  static StepRequest llama(const char* policy, at::ScalarType type = at::kBFloat16,
                           int64_t batch = 4) {
    return step_request(small_request(policy, type, {batch, 128}, small_shape()));
  }
  static StepRequest resnet(const char* preset) {
    const ResnetConfig config{.blocks = {1, 1}, .width = 8, .bottleneck = true, .classes = 10};
    StepRequest r;
    r.network = [=](at::Device device) {
      return std::make_unique<Resnet>(config, Policy::preset(preset),
                                      NetworkOptions{.device = device});
    };
    r.micro_batch = [](at::Device device, int64_t) {
      return StepInputs{{at::empty({32, 3, 64, 64}, at::device(device))},
                        at::ones({32}, at::device(device).dtype(at::kLong))};
    };
    r.optimizer.kind = &sgd_optimizer;
    return r;
  }
};

TEST_F(PredictedTime, NoneIsFasterOnALesserCard) {
  const char* const from_fast_to_slow[] = {"b200", "h200", "h100", "a100", "a10"};
  for (const char* policy : {"off", "compact", "gact-l1"}) {
    double before = 0;
    for (const char* card : from_fast_to_slow) {
      const double seconds = time_of(llama(policy), gpu_card(card)).total().seconds;
      EXPECT_GT(seconds, before) << policy << " on " << card;
      before = seconds;
    }
  }
  EXPECT_LT(time_of(llama("exact")).total().seconds,
            time_of(llama("exact"), gpu_card("4090")).total().seconds);
}

TEST_F(PredictedTime, RebuildingAndTwiceTheBatchTakeLonger) {
  const double exact = time_of(llama("exact")).total().seconds;
  EXPECT_GT(time_of(llama("recompute")).total().seconds, exact);
  EXPECT_GT(time_of(llama("exact", at::kBFloat16, 8)).total().seconds, exact);
  EXPECT_GT(time_of(llama("exact", at::kFloat)).total().seconds, exact);
}

TEST_F(PredictedTime, CodecsAreAPartOfTheirOwn) {
  EXPECT_EQ(time_of(llama("exact")).parts[2].seconds, 0);
  EXPECT_GT(time_of(llama("gact-l1")).parts[2].seconds, 0);
  EXPECT_GT(time_of(llama("compact")).parts[2].bytes, 0);
}

// The bytes that quantized and pooled presets take more than `exact`.
TEST_F(PredictedTime, ConvolutionsHaveTheSameProductsUnderEveryPreset) {
  const StepTime off = time_of(resnet("off"));
  EXPECT_EQ(off.parts[2].bytes, 0);
  for (const char* preset : {"exact", "gact-l1", "pool", "pool-quant"}) {
    const StepTime time = time_of(resnet(preset));
    if (std::string(preset).starts_with("pool")) {
      EXPECT_LT(time.parts[0].products, off.parts[0].products) << preset;
    } else {
      EXPECT_EQ(time.parts[0].products, off.parts[0].products) << preset;
    }
    EXPECT_GT(time.parts[2].bytes, 0) << preset;
    EXPECT_EQ(time.parts[4].bytes, off.parts[4].bytes) << preset;
  }
}

}  // namespace
}  // namespace compact
