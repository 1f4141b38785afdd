// SPDX-License-Identifier: Apache-2.0
// Masked attention by CUDA's kernel, which is emulated here, beside masked attention in chunks.
#include "compact/ops/functions/efficient_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "compact/base/check.h"
#include "compact/ops/policy/policy.h"
#include "tests/ops/block.h"
#include "tests/ops/bound_segment.h"
#include "tests/ops/emulated_efficient.h"

namespace compact {
namespace {

// Views of one fused product, as stages have them.
struct Inputs {
  at::Tensor q, k, v, gout, lengths;
};
Inputs inputs_of(int64_t batch, int64_t heads, int64_t length, int64_t dim,
                 at::ScalarType type = at::kFloat) {
  const auto parts = noise({batch, length, 3 * heads, dim}, "qkv", type)
                         .transpose(1, 2)
                         .split_with_sizes({heads, heads, heads}, 1);
  const at::Tensor gout = noise({batch, length, heads, dim}, "g", type).transpose(1, 2);
  at::Tensor lengths = at::arange(batch, at::kLong).mul_(3).remainder_(length).add_(1);
  lengths[0] = length;
  return {parts[0], parts[1], parts[2], gout, lengths};
}

int64_t width_of(at::ScalarType type, int64_t dim) {
  return choose_masked_attention(c10::kCUDA, 90, type, dim, 0).width;
}

class EfficientAttention : public testing::Test {
 protected:
  static void SetUpTestSuite() { emulated_ = std::make_unique<EmulatedEfficient>(); }
  static void TearDownTestSuite() { emulated_.reset(); }

 private:
  static inline std::unique_ptr<EmulatedEfficient> emulated_;
};

TEST(PaddingBias, IsInRowsOfWholeSixteens) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t keys : {1, 7, 8, 16, 17, 100}) {
      const at::Tensor lengths = at::tensor({keys, int64_t{1}, (keys + 1) / 2}, at::kLong);
      const at::Tensor bias = padding_bias(lengths, type, {3, 2, 5, keys});
      EXPECT_EQ(bias.sizes(), (at::IntArrayRef{3, 2, 5, keys}));
      EXPECT_EQ(bias.scalar_type(), type);
      EXPECT_EQ(bias.strides(), (at::IntArrayRef{(keys + 15) / 16 * 16, 0, 0, 1}));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(bias.const_data_ptr()) % 16, 0u);
      EXPECT_EQ(bias.storage_offset(), 0);
      EXPECT_EQ(padding_bias(lengths, type, {3, 1, 1, keys}).strides(), bias.strides());
      // The elements after a row can be read, also after the last row.
      EXPECT_EQ(bias.storage().nbytes(), static_cast<size_t>(3 * bias.stride(0)) * bias.itemsize());
      for (int64_t i = 0; i < 3; ++i) {
        const int64_t there = lengths[i].item<int64_t>();
        EXPECT_TRUE(bias[i].narrow(2, 0, there).eq(0).all().item<bool>());
        EXPECT_TRUE(bias[i]
                        .narrow(2, there, keys - there)
                        .eq(-std::numeric_limits<double>::infinity())
                        .all()
                        .item<bool>());
      }
    }
  }
}

TEST(PaddingBias, AddedToScoresMasksThem) {
  const Inputs in = inputs_of(4, 2, 21, 8);
  const at::Tensor bias = padding_bias(in.lengths, at::kFloat, {4, 2, 21, 21});
  const at::Tensor scores = in.q.matmul(in.k.transpose(2, 3)) / std::sqrt(8.0) + bias;
  EXPECT_LT(relative_error(masked_attention(in.q, in.k, in.v, {.lengths = in.lengths}),
                           at::softmax(scores, -1).matmul(in.v)),
            1e-6);
}

// Heads as wide as the kernel takes them and padded, with padding, causal, of a given scale.
TEST_F(EfficientAttention, EqualsTheOneInChunks) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t dim : {3, 8, 12, 20}) {
      for (const int64_t length : {1, 7, 40}) {
        const Inputs in = inputs_of(3, 2, length, dim, type);
        for (const int kind : {0, 1, 2, 3}) {
          MaskedAttention how{.causal = kind >= 2};
          if (kind % 2 == 1) how.lengths = in.lengths;
          if (kind == 3) how.scale = 0.3;
          const int64_t width = width_of(type, dim);
          const AttentionResult got = efficient_attention(in.q, in.k, in.v, how, width);
          const double allowed = type == at::kFloat ? 2e-6 : 2e-2;
          EXPECT_TRUE(got.out.transpose(1, 2).is_contiguous());
          EXPECT_LT(relative_error(got.out, masked_attention(in.q, in.k, in.v, how)), allowed);
          ASSERT_EQ(got.extras.size(), 3u);
          EXPECT_TRUE(same_bits(
              efficient_attention(in.q, in.k, in.v, how, width, /*want_extras=*/false).out,
              got.out));

          const at::Tensor gq = at::empty_like(in.q), gk = at::empty_like(in.k),
                           gv = at::empty_like(in.v);
          masked_attention_backward(in.gout, in.q, in.k, in.v, how, gq, gk, gv);
          const AttentionGradients g = efficient_attention_backward(
              in.gout, in.q, in.k, in.v, got.out, got.extras, how, width);
          EXPECT_EQ(g.gq.sizes(), gq.sizes());
          EXPECT_LT(relative_error(g.gv, gv), allowed) << type << " " << dim << " " << length;
          if (length == 1) continue;  // the others are 0
          EXPECT_LT(relative_error(g.gq, gq), 2 * allowed) << type << " " << dim << " " << length;
          EXPECT_LT(relative_error(g.gk, gk), 2 * allowed) << type << " " << dim << " " << length;
        }
      }
    }
  }
}

// Groups of keys and values repeated, sequences of one token, several tiles.
TEST(PaddedFlashAttention, EqualsTheOneInChunks) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t length : {1, 7, 40, 600}) {
      const Inputs in = inputs_of(3, 2, length, 12, type);
      for (const bool causal : {false, true}) {
        for (const bool padded : {false, true}) {
          const MaskedAttention how{.lengths = padded ? in.lengths : at::Tensor(),
                                    .causal = causal,
                                    .scale = causal ? std::optional(0.3) : std::nullopt};
          const AttentionResult got = padded_flash_attention(in.q, in.k, in.v, how);
          const double allowed = type == at::kFloat ? 2e-6 : 2e-2;
          EXPECT_TRUE(got.out.transpose(1, 2).is_contiguous());
          EXPECT_LT(relative_error(got.out, masked_attention(in.q, in.k, in.v, how)), allowed);
          const at::Tensor gq = at::empty_like(in.q), gk = at::empty_like(in.k),
                           gv = at::empty_like(in.v);
          masked_attention_backward(in.gout, in.q, in.k, in.v, how, gq, gk, gv);
          const AttentionGradients g =
              padded_flash_attention_backward(in.gout, in.q, in.k, in.v, got.out, got.extras, how);
          EXPECT_LT(relative_error(g.gv, gv), allowed) << type << " " << length;
          if (length == 1) continue;  // the others are 0
          EXPECT_LT(relative_error(g.gq, gq), 2 * allowed) << type << " " << length;
          EXPECT_LT(relative_error(g.gk, gk), 2 * allowed) << type << " " << length;
        }
      }
    }
  }
  const Inputs in = inputs_of(1, 1, 3, 4);
  EXPECT_THROW(padded_flash_attention(in.q, in.k, in.v, {.dropout = 0.1}), InputError);
}

TEST_F(EfficientAttention, NoiseIsThatOfItsKey) {
  const Inputs in = inputs_of(2, 2, 9, 8);
  const auto run = [&](uint64_t key) {
    return efficient_attention(in.q, in.k, in.v,
                               {.lengths = in.lengths, .dropout = 0.4, .key = key}, 8);
  };
  at::Generator others = at::detail::getDefaultCPUGenerator();
  others.set_current_seed(5);
  const at::Tensor first = at::rand({3}), second = at::rand({3});
  others.set_current_seed(5);
  EXPECT_TRUE(same_bits(at::rand({3}), first));
  constexpr uint64_t kKey = 0xfedcba9876543210;  // all of its 64 bits
  const AttentionResult one = run(kKey), other = run(kKey + 1), again = run(kKey);
  EXPECT_TRUE(same_bits(one.out, again.out));
  EXPECT_FALSE(same_bits(one.out, other.out));
  EXPECT_EQ(static_cast<uint64_t>(one.extras[1].item<int64_t>()), kKey);
  EXPECT_EQ(one.extras[2].item<int64_t>(), 0);
  EXPECT_TRUE(same_bits(at::rand({3}), second));
}

// Also where the kernel refuses what it is given.
TEST_F(EfficientAttention, OthersNoiseIsAsItWas) {
  const Inputs in = inputs_of(2, 2, 9, 6);
  const at::Generator others = at::detail::getDefaultCPUGenerator();
  const at::Tensor before = others.get_state();
  EXPECT_THROW(efficient_attention(in.q, in.k, in.v, {.dropout = 0.4, .key = 3}, 6), c10::Error);
  EXPECT_TRUE(same_bits(others.get_state(), before));
}

// For one key the result is linear in v, and smooth in q and k.
TEST_F(EfficientAttention, GradientsBelongToTheMaskThatWasDrawn) {
  const Inputs in = inputs_of(3, 2, 9, 6);
  const MaskedAttention how{.lengths = in.lengths, .dropout = 0.4, .key = 77};
  const AttentionResult r = efficient_attention(in.q, in.k, in.v, how, 8);
  const AttentionGradients g =
      efficient_attention_backward(in.gout, in.q, in.k, in.v, r.out, r.extras, how, 8);
  const auto loss = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    const at::Tensor y = efficient_attention(q, k, v, how, 8).out;
    return (y.to(at::kDouble) * in.gout).sum().item<double>();
  };
  const auto along = [](const at::Tensor& a, const at::Tensor& by) {
    return (a.to(at::kDouble) * by).sum().item<double>();
  };
  const double out = loss(in.q, in.k, in.v);
  EXPECT_NEAR(along(g.gv, in.v), out, 1e-4 * (std::abs(out) + 1));
  constexpr double kStep = 1e-2;
  const at::Tensor by = noise(in.q.sizes(), "by", at::kFloat) * kStep;
  const double dq = loss(in.q + by, in.k, in.v) - loss(in.q - by, in.k, in.v),
               dk = loss(in.q, in.k + by, in.v) - loss(in.q, in.k - by, in.v);
  EXPECT_NEAR(2 * along(g.gq, by), dq, 2e-3 * (std::abs(dq) + kStep));
  EXPECT_NEAR(2 * along(g.gk, by), dk, 2e-3 * (std::abs(dk) + kStep));
}

TEST_F(EfficientAttention, RefusesWhatNoKernelHas) {
  const Inputs in = inputs_of(2, 2, 9, 8);
  for (const MaskedAttention& how :
       {MaskedAttention{.causal = true, .window = 3}, MaskedAttention{.softcap = 3},
        MaskedAttention{.lengths = at::ones({3}, at::kLong)}}) {
    EXPECT_THROW(efficient_attention(in.q, in.k, in.v, how, 8), InputError);
  }
  EXPECT_THROW(
      efficient_attention(in.q.narrow(2, 8, 1), in.k, in.v, MaskedAttention{.causal = true}, 8),
      InputError);
}

constexpr int64_t kMaskedHeads = 4, kDim = 6;

struct Ran {
  at::Tensor y, gx;
  SegmentReport report;
};
// A stage in a segment whose output is read by its own backward pass and by a scale's, not at all.
Ran run_stage(AttentionOptions options, bool fused, const std::string& policy, bool training,
              const at::Tensor& lengths, int64_t kv_heads = kMaskedHeads) {
  if (fused) options.choice = {AttentionKernel::kCudaEfficient, 8};
  const int64_t width = (kMaskedHeads + 2 * kv_heads) * kDim;
  const Policy p = Policy::parse(policy, "test");
  BoundSegment s("b", Slot{"b.in", width});
  // Twice: the second reads what may be rebuilt.
  s.add(scale_stage(0.5), {}, slot_of(p, "b.qkv", Role::kQkv, width));
  s.add(attention_stage(kMaskedHeads, kv_heads, kDim, options), {},
        slot_of(p, "b.out", Role::kAttention, kMaskedHeads * kDim));
  s.add(gelu_stage(false));
  s.finish();
  s.pass = {.training = training, .noise = 7, .lengths = lengths};
  const at::Tensor x = noise({3, 9, width}, "x", at::kFloat).requires_grad_();
  const at::Tensor y = s(x);
  y.backward(noise(y.sizes(), "gy", at::kFloat));
  return {y.detach(), x.grad(), s.report};
}

TEST_F(EfficientAttention, StageIsTheOneInChunks) {
  const at::Tensor lengths = at::tensor({9, 1, 5}, at::kLong);
  constexpr const char* kKeep = "slot * = keep\n";
  for (const bool causal : {false, true}) {
    for (const int64_t kv_heads : {kMaskedHeads, kMaskedHeads / 2}) {
      const AttentionOptions options{.causal = causal, .dropout = 0.3};
      const Ran want = run_stage(options, false, kKeep, false, lengths, kv_heads),
                got = run_stage(options, true, kKeep, false, lengths, kv_heads);
      EXPECT_LT(relative_error(got.y, want.y), 1e-5);
      EXPECT_LT(relative_error(got.gx, want.gx), 1e-5);
    }
  }
}

// With dropout too: the stage that runs again draws the same noise, and a pass that has no dropout
// has none backward.
TEST_F(EfficientAttention, StageIsRebuiltBitForBit) {
  const at::Tensor lengths = at::tensor({9, 1, 5}, at::kLong);
  for (const bool training : {false, true}) {
    const AttentionOptions options{.causal = false, .dropout = 0.3};
    const Ran want = run_stage(options, true, "slot * = keep\n", training, lengths);
    for (const char* slots : {"slot b.out = recompute\n", "slot * = recompute\nslot b.in = keep\n",
                              "slot b.qkv = recompute\nslot b.out = keep\n"}) {
      const Ran got = run_stage(options, true, slots, training, lengths);
      EXPECT_TRUE(same_bits(got.y, want.y)) << slots;
      EXPECT_TRUE(same_bits(got.gx, want.gx)) << slots;
      EXPECT_LE(got.report.saved_bytes, want.report.saved_bytes) << slots;
    }
    const SlotBytes& extras = want.report.slots.back();
    EXPECT_EQ(extras.name, "b.extras");
    EXPECT_EQ(extras.stored, 3 * kMaskedHeads * 32 * 4 + 2 * 8);  // logsumexp, seed and offset
  }
}

TEST_F(EfficientAttention, StageWithWindowOrCapIsInChunks) {
  for (const AttentionOptions& options :
       {AttentionOptions{.window = 3}, AttentionOptions{.softcap = 3}}) {
    const Ran want = run_stage(options, false, "slot * = keep\nslot b.out = recompute\n", true, {}),
              got = run_stage(options, true, "slot * = keep\nslot b.out = recompute\n", true, {});
    EXPECT_TRUE(same_bits(got.y, want.y));
    EXPECT_TRUE(same_bits(got.gx, want.gx));
    EXPECT_EQ(got.report.saved_bytes, want.report.saved_bytes);
  }
}

}  // namespace
}  // namespace compact
