// SPDX-License-Identifier: Apache-2.0
// Plans for a GPU that is not here: what its operations refuse, what lies in the host's memory,
// what the same bits in every run cost.
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/codecs/meta_device.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

class GpuPlans : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, false);
    set_meta_device(c10::kCPU);
  }

  static StepPlan plan(const std::string& policy, const LlamaConfig& shape,
                       at::ScalarType type = at::kBFloat16, TestStep step = {4, 128}) {
    PlanRequest r = small_request(policy, type, step, shape);
    r.device = c10::kCUDA;
    return plan_step(r);
  }
};

// gate_up of 4 layers, 4 * 128 tokens of 2 * 2,048 elements in bf16: 16 MiB, of which the backward
// pass of a layer has a quarter back on the device.
TEST_F(GpuPlans, OffloadedSlotsAreHostMemory) {
  LlamaConfig shape = small_shape(4);
  shape.block.intermediate = 2048;
  const StepPlan kept = plan("slot layers.*.mlp.gate_up = keep\n", shape),
                 moved = plan("slot layers.*.mlp.gate_up = offload\n", shape);
  constexpr int64_t kMoved = int64_t{16} << 20;
  EXPECT_EQ(kept.memory.host.asked, 0);
  EXPECT_EQ(moved.memory.host.asked, kMoved);
  EXPECT_EQ(moved.memory.host.pinned, kMoved);  // 4 MiB a layer, a power of two
  EXPECT_EQ(moved.memory.saved, kept.memory.saved);
  EXPECT_EQ(moved.memory.held, kept.memory.held - kMoved);
  EXPECT_LE(moved.memory.peak, kept.memory.peak - kMoved / 2);
  EXPECT_LE(moved.reserved, kept.reserved);
  EXPECT_EQ(live_bytes(at::kMeta), 0);
}

TEST_F(GpuPlans, HostMemoryIsRoundedToPowersOfTwo) {
  const StepPlan moved = plan("slot layers.*.mlp.gate_up = offload\n", small_shape(), at::kFloat);
  const int64_t one = int64_t{4} * 128 * 2 * 176 * 4;  // 172 with its padding
  EXPECT_EQ(moved.memory.host.asked, 2 * one);
  EXPECT_EQ(moved.memory.host.pinned, 2 * (int64_t{1} << 20));
}

// On a CPU it is the same memory.
TEST_F(GpuPlans, OffloadOnACpuIsAnother) {
  const PlanRequest r = small_request("slot layers.*.mlp.gate_up = offload\n", at::kFloat,
                                      {.batch = 2, .length = 32}, small_shape());
  EXPECT_EQ(plan_step(r).memory.host.asked, 0);
}

// Norms of encoders are f32 whatever the type of activations, which the GPU's operation refuses.
TEST_F(GpuPlans, EncodersRunInBfloat16) {
  for (const char* preset : {"off", "exact", "compact"}) {
    StepRequest r;
    r.network = [&](at::Device device) {
      return std::make_unique<Encoder>(small_encoder(), Policy::preset(preset),
                                       NetworkOptions{.device = device, .dtype = at::kBFloat16});
    };
    r.micro_batch = [&](at::Device device, int64_t) {
      return StepInputs{encoder_inputs(device, 4, 32),
                        at::zeros({4}, at::device(device).dtype(at::kLong))};
    };
    r.device = c10::kCUDA;
    EXPECT_GT(plan_step(r).memory.peak, 0) << preset;
  }
}

TEST_F(GpuPlans, HeadsOfAnyWidthRun) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    for (const int64_t dim : {2, 6, 10, 12, 20, 64, 256, 258, 320}) {
      LlamaConfig shape = small_shape(1);
      shape.block.head_dim = dim;
      shape.block.hidden = 4 * dim;
      EXPECT_GT(plan("exact", shape, type, {1, 16}).memory.peak, 0) << type << " " << dim;
    }
  }
}

// FlashAttention then sums the queries' gradient in 132 / (batch * heads) parts, not in one. The
// peaks need not be in the same operation.
TEST_F(GpuPlans, DeterministicFlashTakesMoreMemory) {
  LlamaConfig shape = small_shape(1);
  shape.vocab_size = 64;
  const TestStep step{.batch = 1, .length = 2048};
  const int64_t plain = plan("off", shape, at::kBFloat16, step).memory.peak;
  at::globalContext().setDeterministicAlgorithms(true, false);
  const int64_t same = plan("off", shape, at::kBFloat16, step).memory.peak;
  const int64_t part = int64_t{4} * 2048 * 32 * 4;  // heads, tokens, width rounded up, f32
  EXPECT_LE(same - plain, (132 / 4 - 1) * part);
  EXPECT_GE(same - plain, (132 / 4 - 3) * part);
}

// Above 3072 of them: six lists of indices and one row in f32 for each; below nothing.
TEST_F(GpuPlans, GradientsOfEmbeddingsTakeSortedIndicesAndRows) {
  constexpr int64_t kRows = 100, kWidth = 64;
  const auto beside_the_result = [](int64_t tokens, c10::DeviceType device) {
    prepare_meta(device);
    const at::Tensor gradient = at::empty({tokens, kWidth}, at::device(at::kMeta).dtype(at::kHalf)),
                     indices = at::empty({tokens}, at::device(at::kMeta).dtype(at::kLong));
    reset_peak(at::kMeta);
    const at::Tensor result = at::embedding_dense_backward(gradient, indices, kRows, -1, false);
    EXPECT_EQ(result.sizes(), (std::vector<int64_t>{kRows, kWidth}));
    return peak_bytes(at::kMeta) - live_bytes(at::kMeta);
  };
  EXPECT_EQ(beside_the_result(4096, c10::kCUDA), 4096 * (6 * 8 + 4 * kWidth));
  EXPECT_EQ(beside_the_result(3072, c10::kCUDA), 0);
  EXPECT_EQ(beside_the_result(4096, c10::kCPU), 0);
}

}  // namespace
}  // namespace compact
