// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/attention.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "compact/codecs/meta_device.h"
#include "compact/ops/memory/memory.h"
#include "tests/ops/block.h"
#include "tests/ops/bound_segment.h"

namespace compact {
namespace {

struct Shape {
  int64_t batch, heads, kv_heads, length, dim;
};

// Scores, softmax and sum in double.
at::Tensor plain(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t group = q.size(1) / k.size(1), s = q.size(2);
  const at::Tensor scores = q.matmul(k.repeat_interleave(group, 1).transpose(2, 3)) /
                            std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor future = at::ones({s, s}, at::kBool).triu(1);
  return scores.masked_fill(future, -INFINITY).softmax(-1).matmul(v.repeat_interleave(group, 1));
}

TEST(Attention, AgreesWithScoresInDouble) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Shape& s : {Shape{1, 1, 1, 1, 2}, Shape{2, 4, 4, 7, 6}, Shape{2, 4, 2, 33, 8},
                           Shape{1, 6, 1, 130, 10}}) {
      // as a fused product gives them: strided
      const at::Tensor fused =
          noise({s.batch, s.length, s.heads + 2 * s.kv_heads, s.dim}, "qkv", type);
      const auto parts =
          fused.transpose(1, 2).split_with_sizes({s.heads, s.kv_heads, s.kv_heads}, 1);
      const at::Tensor gout = noise({s.batch, s.heads, s.length, s.dim}, "g", type);
      const AttentionResult r = attention_forward(parts[0], parts[1], parts[2]);
      EXPECT_TRUE(r.out.transpose(1, 2).is_contiguous());
      EXPECT_EQ(r.extras[0].numel(), s.batch * s.heads * s.length);
      const AttentionGradients g =
          attention_backward(gout, parts[0], parts[1], parts[2], r.out, r.extras);

      std::vector<at::Tensor> leaves;
      for (const at::Tensor& p : parts) leaves.push_back(p.to(at::kDouble).requires_grad_(true));
      const at::Tensor want = plain(leaves[0], leaves[1], leaves[2]);
      want.backward(gout.to(at::kDouble));
      const double allowed = type == at::kFloat ? 2e-6 : 1.5e-2;
      EXPECT_LT(relative_error(r.out, want), allowed);
      EXPECT_LT((g.gv.to(at::kDouble) - leaves[2].grad()).norm().item<double>(),
                allowed * leaves[2].grad().norm().item<double>());
      if (s.length == 1) continue;  // the gradients of q and k are zero
      EXPECT_LT(relative_error(g.gq, leaves[0].grad()), allowed) << s.heads;
      EXPECT_LT(relative_error(g.gk, leaves[1].grad()), allowed) << s.heads;
    }
  }
}

// A stage that may drop probabilities equals one without dropout in evaluation.
TEST(Attention, ThatMayDropIsTheSame) {
  const int64_t heads = 4, dim = 6;
  for (const int64_t kv_heads : {1, 2, 4}) {
    std::vector<at::Tensor> want;
    for (const double dropout : {0.0, 0.5}) {
      BoundSegment segment("attention", Slot{"in", (heads + 2 * kv_heads) * dim});
      segment.add(attention_stage(heads, kv_heads, dim, {.scale = 0.3, .dropout = dropout}));
      segment.finish();
      segment.pass.training = false;
      const at::Tensor x =
          noise({2, 9, (heads + 2 * kv_heads) * dim}, "qkv", at::kFloat).requires_grad_(true);
      const at::Tensor y = segment(x);
      y.backward(noise(y.sizes(), "gy", at::kFloat));
      if (want.empty()) want = {y.detach(), x.grad()};
      EXPECT_TRUE(at::allclose(y, want[0], 1e-5, 1e-6)) << kv_heads;
      EXPECT_TRUE(at::allclose(x.grad(), want[1], 1e-4, 1e-5)) << kv_heads;
    }
  }
}

TEST(Attention, TakesAnyStrides) {
  const auto strided = [](const char* name) {
    return noise({2, 4, 8, 7}, name, at::kFloat).transpose(2, 3);  // [2, 4, 7, 8]
  };
  const at::Tensor q = strided("q"), k = strided("k"), v = strided("v"), g = strided("g");
  const AttentionResult want = attention_forward(q.contiguous(), k.contiguous(), v.contiguous());
  const AttentionGradients wanted = attention_backward(
      g.contiguous(), q.contiguous(), k.contiguous(), v.contiguous(), want.out, want.extras);
  for (int which = 0; which < 8; ++which) {
    const auto some = [&](const at::Tensor& t, int bit) {
      return which & bit ? t : t.contiguous();
    };
    const AttentionResult r = attention_forward(some(q, 1), some(k, 2), some(v, 4));
    EXPECT_TRUE(at::equal(r.out, want.out)) << which;
    const AttentionGradients got =
        attention_backward(g, some(q, 1), some(k, 2), some(v, 4), want.out, want.extras);
    EXPECT_TRUE(at::equal(got.gq, wanted.gq)) << which;
    EXPECT_TRUE(at::equal(got.gk, wanted.gk)) << which;
    EXPECT_TRUE(at::equal(got.gv, wanted.gv)) << which;
  }
}

// The memory of the product takes the gradients of some heads at a time.
TEST(Attention, GradientsOfSomeHeadsAtATimeAreTheSame) {
  install_counting_allocator();
  const int threads = at::get_num_threads();
  for (const int now : {1, 3}) {
    at::set_num_threads(now);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const int64_t kv_heads : {2, 3, 6}) {
        const int64_t heads = 6, dim = 4, width = (heads + 2 * kv_heads) * dim;
        Parameter product;
        product.weight = noise({width, 8}, "product", type);
        const auto run = [&](int64_t gradient_bytes) {
          AttentionOptions options;
          options.gradient_bytes = gradient_bytes;
          BoundSegment s("attention", Slot{"input", 8});
          s.add(linear_stage(), {&product}, Slot{"qkv", width});
          s.add(attention_stage(heads, kv_heads, dim, options), {}, Slot{"out", heads * dim});
          s.finish();
          const at::Tensor x = noise({1, 130, 8}, "x", type).requires_grad_(true), y = s(x);
          const at::Tensor gy = noise({1, 130, heads * dim}, "gy", type);
          reset_peak(at::kCPU);
          const int64_t before = live_bytes(at::kCPU);
          torch::autograd::backward({y}, {gy}, /*retain_graph=*/false);
          return std::pair(x.grad(), peak_bytes(at::kCPU) - before);
        };
        const auto [want, whole] = run(1 << 28);
        const auto [got, some] = run(1);
        EXPECT_TRUE(same_bits(got, want)) << now << " " << kv_heads;
        if (now == 1) {
          EXPECT_LT(some, whole) << kv_heads;
        }
      }
    }
  }
  at::set_num_threads(threads);
}

TEST(Attention, TakesNoSequencesAndEmptyOnes) {
  for (const auto& [batch, length] : {std::pair(0, 4), {3, 0}}) {
    for (const AttentionChoice& choice :
         {AttentionChoice{AttentionKernel::kCpuFlash, 6}, {AttentionKernel::kMath, 6}}) {
      const auto parts =
          noise({batch, 8, length, 6}, "qkv", at::kFloat).split_with_sizes({4, 2, 2}, 1);
      const AttentionResult r = attention_forward(parts[0], parts[1], parts[2], choice);
      EXPECT_EQ(r.out.sizes(), parts[0].sizes());
      const AttentionGradients g =
          attention_backward(r.out, parts[0], parts[1], parts[2], r.out, r.extras, choice);
      EXPECT_EQ(g.gq.sizes(), parts[0].sizes());
      EXPECT_EQ(g.gk.sizes(), parts[1].sizes());
      EXPECT_EQ(g.gv.sizes(), parts[2].sizes());
    }
  }
}

constexpr auto kFlash = AttentionKernel::kCudaFlash, kEfficient = AttentionKernel::kCudaEfficient,
               kMath = AttentionKernel::kMath;

// The conditions of each kernel, as LibTorch's own choice among them checks them for a GPU.
TEST(Attention, ChoosesByDeviceTypeAndWidth) {
  const struct {
    int capability;
    at::ScalarType type;
    int64_t dim;
    AttentionChoice want;
  } table[] = {
      {90, at::kBFloat16, 64, {kFlash, 64}},       {90, at::kHalf, 128, {kFlash, 128}},
      {80, at::kBFloat16, 256, {kFlash, 256}},     {90, at::kBFloat16, 6, {kFlash, 8}},
      {90, at::kBFloat16, 20, {kFlash, 24}},       {90, at::kBFloat16, 250, {kFlash, 256}},
      {90, at::kBFloat16, 264, {kEfficient, 264}}, {90, at::kBFloat16, 300, {kEfficient, 304}},
      {86, at::kBFloat16, 192, {kFlash, 192}},     {86, at::kBFloat16, 224, {kEfficient, 224}},
      {89, at::kHalf, 256, {kEfficient, 256}},     {120, at::kBFloat16, 256, {kEfficient, 256}},
      {100, at::kBFloat16, 256, {kFlash, 256}},    {75, at::kHalf, 64, {kEfficient, 64}},
      {75, at::kHalf, 12, {kEfficient, 16}},       {75, at::kBFloat16, 64, {kMath, 64}},
      {90, at::kFloat, 64, {kEfficient, 64}},      {90, at::kFloat, 6, {kEfficient, 8}},
      {90, at::kFloat, 12, {kEfficient, 12}},      {70, at::kFloat, 512, {kEfficient, 512}},
      {90, at::kDouble, 64, {kMath, 64}},          {90, at::kDouble, 6, {kMath, 6}},
  };
  for (const auto& [capability, type, dim, want] : table) {
    EXPECT_EQ(choose_attention(c10::kCUDA, capability, type, dim), want)
        << capability << " " << type << " " << dim << ": "
        << attention_text(choose_attention(c10::kCUDA, capability, type, dim), dim);
  }
  for (const int64_t dim : {6, 64, 512}) {
    EXPECT_EQ(choose_attention(c10::kCPU, 0, at::kBFloat16, dim),
              (AttentionChoice{AttentionKernel::kCpuFlash, dim}));
    EXPECT_EQ(choose_attention(c10::kMPS, 0, at::kFloat, dim), (AttentionChoice{kMath, dim}));
  }
}

// The kernel that takes a bias and drops probabilities, whatever flash attention takes.
TEST(Attention, OfEncodersChoosesByDeviceTypeAndWidth) {
  constexpr auto kChunks = AttentionKernel::kChunks;
  const struct {
    c10::DeviceType device;
    int capability;
    at::ScalarType type;
    int64_t dim;
    AttentionChoice want;
  } table[] = {
      {c10::kCUDA, 90, at::kBFloat16, 64, {kEfficient, 64}},
      {c10::kCUDA, 80, at::kHalf, 32, {kEfficient, 32}},
      {c10::kCUDA, 90, at::kBFloat16, 20, {kEfficient, 24}},
      {c10::kCUDA, 90, at::kFloat, 6, {kEfficient, 8}},
      {c10::kCUDA, 90, at::kFloat, 300, {kEfficient, 300}},
      {c10::kCUDA, 75, at::kHalf, 12, {kEfficient, 16}},
      {c10::kCUDA, 75, at::kBFloat16, 64, {kChunks, 64}},
      {c10::kCUDA, 90, at::kDouble, 6, {kChunks, 6}},
      {c10::kCPU, 0, at::kFloat, 6, {kChunks, 6}},
      {c10::kCPU, 0, at::kBFloat16, 64, {kChunks, 64}},
      {c10::kMPS, 0, at::kFloat, 6, {kChunks, 6}},
  };
  for (const auto& [device, capability, type, dim, want] : table) {
    EXPECT_EQ(choose_masked_attention(device, capability, type, dim, 0.1), want)
        << device << " " << capability << " " << type << " " << dim;
    const AttentionChoice padded = choose_masked_attention(device, capability, type, dim, 0);
    EXPECT_EQ(padded,
              device == c10::kCPU ? (AttentionChoice{AttentionKernel::kCpuFlash, dim}) : want);
  }
  // The meta device is the one that plans are for.
  const AttentionChoice chunks{kChunks, 6}, fused{kEfficient, 8};
  EXPECT_EQ(choose_masked_attention(at::kCPU, at::kFloat, 6, 0.1), chunks);
  EXPECT_EQ(choose_masked_attention(at::kMeta, at::kFloat, 6, 0.1), chunks);
  set_meta_device(c10::kCUDA);
  EXPECT_EQ(choose_masked_attention(at::kMeta, at::kFloat, 6, 0.1), fused);
  EXPECT_EQ(choose_masked_attention(at::kCPU, at::kFloat, 6, 0.1), chunks);
  set_meta_device(c10::kCPU);
}

TEST(Attention, NamesItsKernel) {
  EXPECT_EQ(attention_text({AttentionKernel::kCpuFlash, 6}, 6), "flash (cpu)");
  EXPECT_EQ(attention_text({kFlash, 24}, 20), "flash (cuda), heads of 20 padded to 24");
  EXPECT_EQ(attention_text({kEfficient, 64}, 64), "efficient (cuda)");
  EXPECT_EQ(attention_text({kMath, 64}, 64), "math");
  EXPECT_EQ(attention_text({AttentionKernel::kChunks, 64}, 64), "chunks of scores");
}

// Heads padded for a kernel, and scores in the open, give what the kernel gives by itself.
TEST(Attention, PaddedHeadsAndScoresInTheOpenAgree) {
  for (const AttentionChoice& choice :
       {AttentionChoice{AttentionKernel::kCpuFlash, 8}, AttentionChoice{kMath, 6}}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor fused = noise({2, 33, 8, 6}, "qkv", type).transpose(1, 2);
      const auto parts = fused.split_with_sizes({4, 2, 2}, 1);
      const at::Tensor gout = noise({2, 4, 33, 6}, "g", type);
      const AttentionResult want = attention_forward(parts[0], parts[1], parts[2]);
      const AttentionGradients g =
          attention_backward(gout, parts[0], parts[1], parts[2], want.out, want.extras);
      const AttentionResult got = attention_forward(parts[0], parts[1], parts[2], choice);
      const AttentionGradients other =
          attention_backward(gout, parts[0], parts[1], parts[2], got.out, got.extras, choice);
      const double allowed = type == at::kDouble ? 1e-13 : 1e-6;
      EXPECT_TRUE(got.out.transpose(1, 2).is_contiguous());
      EXPECT_EQ(got.out.sizes(), want.out.sizes());
      EXPECT_LT(relative_error(got.out, want.out.to(at::kDouble)), allowed) << type;
      EXPECT_LT(relative_error(other.gq, g.gq.to(at::kDouble)), allowed) << type;
      EXPECT_LT(relative_error(other.gk, g.gk.to(at::kDouble)), allowed) << type;
      EXPECT_LT(relative_error(other.gv, g.gv.to(at::kDouble)), allowed) << type;
    }
  }
}

}  // namespace
}  // namespace compact
