// SPDX-License-Identifier: Apache-2.0
// Attention with padding and dropout on a GPU that is not here: what it launches, what it asks for,
// what is kept of it.
#include <gtest/gtest.h>

#include <algorithm>

#include "compact/codecs/meta_device.h"
#include "compact/kernels/gpu.h"
#include "compact/models/gpt2/gpt2.h"
#include "compact/models/vit/vit.h"
#include "compact/ops/functions/efficient_attention.h"
#include "compact/plan/launches.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

class MaskedAttentionPlans : public testing::Test {
 protected:
  void SetUp() override { prepare_meta(c10::kCUDA); }
  void TearDown() override {
    kernels::set_planned_gpu(before_);
    set_meta_device(c10::kCPU);
  }

  static at::Tensor on_meta(at::IntArrayRef sizes, at::ScalarType type) {
    return at::empty(sizes, at::device(at::kMeta).dtype(type));
  }

 private:
  kernels::Gpu before_ = kernels::planned_gpu();
};

StepRequest encoder_step(const Policy& policy, at::ScalarType type, int64_t batch = 4,
                         int64_t length = 32) {
  StepRequest r;
  r.network = [=](at::Device device) {
    return std::make_unique<Encoder>(small_encoder(), policy,
                                     NetworkOptions{.device = device, .dtype = type});
  };
  r.micro_batch = [=](at::Device device, int64_t) {
    return StepInputs{encoder_inputs(device, batch, length),
                      at::zeros({batch}, at::device(device).dtype(at::kLong))};
  };
  r.device = c10::kCUDA;
  return r;
}

// Patches of 4 x 4 of images of 16 x 16, no padding.
StepRequest vit_step(const Policy& policy, at::ScalarType type, double dropout) {
  StepRequest r;
  r.network = [=](at::Device device) {
    const VitConfig c{.hidden_size = 64,
                      .intermediate_size = 128,
                      .num_hidden_layers = 2,
                      .num_attention_heads = 4,
                      .height = 16,
                      .width = 16,
                      .patch_size = 4,
                      .hidden_dropout = dropout,
                      .attention_dropout = dropout};
    return std::make_unique<Vit>(c, policy, NetworkOptions{.device = device, .dtype = type});
  };
  r.micro_batch = [](at::Device device, int64_t) {
    return StepInputs{{at::empty({8, 3, 16, 16}, at::device(device))},
                      at::zeros({8}, at::device(device).dtype(at::kLong))};
  };
  r.device = c10::kCUDA;
  return r;
}

StepRequest gpt2_step(const Policy& policy, at::ScalarType type, double dropout) {
  StepRequest r;
  r.network = [=](at::Device device) {
    Gpt2Config c{.n_embd = 64, .n_layer = 2, .n_head = 4, .n_inner = 128, .vocab_size = 300};
    c.n_positions = 64;
    c.embd_pdrop = c.resid_pdrop = 0;
    c.attn_pdrop = dropout;
    c.bos_token_id.reset();
    c.eos_token_ids.clear();
    return std::make_unique<Gpt2>(
        c, policy, NetworkOptions{.device = device, .dtype = type, .max_length = 64});
  };
  r.micro_batch = [](at::Device device, int64_t) {
    const at::Tensor ids = at::ones({4, 64}, at::device(device).dtype(at::kLong));
    return StepInputs{{ids}, ids};
  };
  r.device = c10::kCUDA;
  return r;
}

std::vector<Operation> operations_of(const StepRequest& r) {
  std::vector<Operation> all;
  plan_step(r, &all);
  return all;
}
int64_t count(const std::vector<Operation>& all, std::string_view name) {
  return std::ranges::count(all, name, &Operation::name);
}

constexpr const char* kForward = "_scaled_dot_product_efficient_attention";
constexpr const char* kBackward = "_scaled_dot_product_efficient_attention_backward";

// GPUs before Ampere have no kernel for bf16: there is the same step in chunks.
TEST_F(MaskedAttentionPlans, TakeFewLaunches) {
  for (const char* preset : {"off", "exact", "recompute"}) {
    const StepRequest r = encoder_step(Policy::preset(preset), at::kBFloat16);
    const auto fused = operations_of(r);
    kernels::set_planned_gpu({.capability = 75});
    const auto chunks = operations_of(r);
    kernels::set_planned_gpu({});
    const int64_t layers = 3, again = std::string_view(preset) == "recompute" ? 2 : 1;
    EXPECT_EQ(count(fused, kForward), layers * again) << preset;
    EXPECT_EQ(count(fused, kBackward), layers) << preset;
    for (const char* name : {"_softmax", "_softmax_backward_data", "bmm"}) {
      EXPECT_EQ(count(fused, name), 0) << preset << " " << name;
      EXPECT_GT(count(chunks, name), 0) << preset << " " << name;
    }
    EXPECT_EQ(count(chunks, kForward), 0) << preset;
    // At least 8 fewer forward and 10 backward of every layer.
    EXPECT_LE(launches_of(fused).total(), launches_of(chunks).total() - layers * 18) << preset;
  }
}

// Counts operations of attention alone.
TEST_F(MaskedAttentionPlans, AreOfOneKernelForImagesAndGpt2) {
  for (const double dropout : {0.0, 0.1}) {
    const Policy policy = Policy::preset("exact");
    const auto images = operations_of(vit_step(policy, at::kBFloat16, dropout));
    EXPECT_EQ(count(images, kForward), 2);
    EXPECT_EQ(count(images, kBackward), 2);
    const auto tokens = operations_of(gpt2_step(policy, at::kBFloat16, dropout));
    EXPECT_EQ(count(tokens, kForward), dropout > 0 ? 2 : 0);
    EXPECT_EQ(count(tokens, "_scaled_dot_product_flash_attention"), dropout > 0 ? 0 : 2);
    EXPECT_EQ(count(tokens, "_softmax"), 0);
    for (const auto* all : {&images, &tokens}) {
      const auto random = std::ranges::count_if(*all, &Operation::random);
      EXPECT_EQ(random, dropout > 0 ? 4 : 0);
    }
  }
}

TEST_F(MaskedAttentionPlans, RunUnderAllPresets) {
  int runs = 0;
  for (const EmbeddedPreset& preset : embedded_presets()) {
    const Policy policy = Policy::preset(preset.name);
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
      if (std::string_view(preset.name).starts_with("pool")) continue;  // of other networks
      EXPECT_GT(plan_step(encoder_step(policy, type)).memory.peak, 0) << preset.name;
      EXPECT_GT(plan_step(vit_step(policy, type, 0.1)).memory.peak, 0) << preset.name;
      EXPECT_GT(plan_step(gpt2_step(policy, type, 0.1)).memory.peak, 0) << preset.name;
      ++runs;
    }
  }
  EXPECT_GE(runs, 20);
  EXPECT_EQ(live_bytes(at::kMeta), 0);
}

// Logsumexp of 32 rows, f32, and the seed and the offset of the dropout, which the host has.
TEST_F(MaskedAttentionPlans, CountWhatIsKeptBesideTheOutput) {
  constexpr int64_t kLayers = 3, kSums = int64_t{4} * 4 * 32 * 4, kSeed = 2 * 8;
  for (const char* preset : {"off", "exact", "recompute"}) {
    const StepRequest r = encoder_step(Policy::preset(preset), at::kBFloat16);
    const StepMemory fused = plan_step(r).memory;
    kernels::set_planned_gpu({.capability = 75});
    const StepMemory chunks = plan_step(r).memory;
    kernels::set_planned_gpu({});
    const auto extras = [](const StepMemory& m) {
      int64_t sum = 0;
      for (const SlotBytes& s : m.slots) {
        if (s.name.starts_with("layers.") && s.name.ends_with(".extras")) sum += s.stored;
      }
      return sum;
    };
    EXPECT_EQ(extras(fused) - extras(chunks), kLayers * (kSums + kSeed)) << preset;
    EXPECT_EQ(fused.saved - chunks.saved, kLayers * (kSums + kSeed)) << preset;
    EXPECT_EQ(fused.held - chunks.held, kLayers * kSums) << preset;
  }
}

// Rows of the bias are whole sixteens. What makes it is gone when the kernel runs: so is here what
// it reads of heads that are padded.
TEST_F(MaskedAttentionPlans, ForwardAsksForOutputAndSums) {
  constexpr int64_t kBatch = 2, kHeads = 3, kLength = 100;
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    for (const int64_t dim : {64, 160}) {
      const at::Tensor q = on_meta({kBatch, kLength, kHeads, dim}, type).transpose(1, 2),
                       lengths = on_meta({kBatch}, at::kLong);
      const int64_t size = c10::elementSize(type), before = live_bytes(at::kMeta);
      reset_peak(at::kMeta);
      const AttentionResult r =
          efficient_attention(q, q, q, {.lengths = lengths, .dropout = 0.1, .key = 1}, dim);
      const int64_t out = kBatch * kHeads * kLength * dim, sums = kBatch * kHeads * 128 * 4,
                    bias = kBatch * 112 * size;
      EXPECT_EQ(live_bytes(at::kMeta) - before, out * size + sums);
      const bool accumulates = type == at::kBFloat16 && dim > 128;
      EXPECT_EQ(peak_bytes(at::kMeta) - before,
                out * size + sums + bias + (accumulates ? out * 4 : 0))
          << type << " " << dim;
    }
  }
}

// By hand of LibTorch's kernel_backward.h: blocks of 64 x 64, 128 x 64 or 128 x 128 scores, each an
// f32 sum and 16 bytes; keys split at most 200 / 6 times, sums of these, too, where they are not in
// registers.
TEST_F(MaskedAttentionPlans, BackwardAsksForGradientsAndItsWorkspace) {
  constexpr int64_t kBatch = 2, kHeads = 3, kLength = 200, kPairs = kBatch * kHeads;
  const struct {
    at::ScalarType type;
    int64_t dim, capability, shared_memory, workspace;
  } table[] = {
      {at::kBFloat16, 64, 90, 227 << 10, 4 * (16 + 4 * 64 * 64)},
      {at::kBFloat16, 128, 90, 227 << 10, 2 * (16 + 4 * 128 * 128)},
      {at::kBFloat16, 128, 120, 99 << 10, 4 * 2 * (16 + 4 * 64 * 64) + 2 * 4 * 64 * 128 * 4},
      {at::kBFloat16, 160, 90, 227 << 10, 2 * 3 * (16 + 4 * 128 * 64) + 2 * 4 * 64 * 256 * 4},
      {at::kHalf, 128, 75, 64 << 10, 2 * 2 * (16 + 4 * 128 * 64)},
      {at::kFloat, 64, 90, 227 << 10, 4 * (16 + 4 * 64 * 64)},
      {at::kFloat, 128, 90, 227 << 10, 2 * 2 * (16 + 4 * 128 * 64)},
      {at::kFloat, 128, 75, 64 << 10, 4 * 2 * (16 + 4 * 64 * 64)},
  };
  for (const auto& [type, dim, capability, shared, workspace] : table) {
    kernels::set_planned_gpu({.capability = static_cast<int>(capability), .shared_memory = shared});
    const at::Tensor q = on_meta({kBatch, kLength, kHeads, dim}, type).transpose(1, 2);
    const MaskedAttention how{.dropout = 0.1, .key = 1};
    const AttentionResult r = efficient_attention(q, q, q, how, dim);
    const int64_t before = live_bytes(at::kMeta);
    reset_peak(at::kMeta);
    const AttentionGradients g =
        efficient_attention_backward(q, q, q, q, r.out, r.extras, how, dim);
    const int64_t gradients = 3 * static_cast<int64_t>(q.nbytes()), delta = kPairs * kLength * 4;
    EXPECT_EQ(live_bytes(at::kMeta) - before, gradients);
    const int64_t sums = type == at::kFloat ? static_cast<int64_t>(q.nbytes()) + 2 * delta : 0;
    EXPECT_EQ(peak_bytes(at::kMeta) - before,
              gradients + std::max(sums, delta + kPairs * workspace))
        << type << " " << dim << " " << capability;
  }
}

TEST_F(MaskedAttentionPlans, RefuseABiasThatTheKernelRefuses) {
  const at::Tensor q = on_meta({2, 3, 10, 8}, at::kBFloat16);
  const auto run = [&](const at::Tensor& bias) {
    at::_scaled_dot_product_efficient_attention(q, q, q, bias, true, 0.0, false, 1.0);
  };
  run(padding_bias(on_meta({2}, at::kLong), at::kBFloat16, {2, 3, 10, 10}));
  EXPECT_THROW(run(on_meta({2, 1, 1, 10}, at::kBFloat16).expand({2, 3, 10, 10})), c10::Error);
  EXPECT_THROW(run(on_meta({2, 3, 10, 16}, at::kFloat).narrow(3, 0, 10)), c10::Error);
}

// The search for what is rebuilt runs the blocks alone; a block's output of attention may be.
TEST_F(MaskedAttentionPlans, BlocksHaveOptions) {
  const StepRequest r = encoder_step(Policy::preset("off"), at::kBFloat16);
  const Speed speed = stated_speed(SegmentGroups(r), 1e14, 3e12);
  const auto all = options_of(r, speed);
  ASSERT_FALSE(all.empty());
  EXPECT_GT(all[0].size(), 3u);
}

}  // namespace
}  // namespace compact
