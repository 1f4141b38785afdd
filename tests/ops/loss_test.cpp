// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/loss.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "compact/base/check.h"
#include "compact/ops/memory/memory.h"
#include "tests/ops/block.h"

namespace compact {
namespace {

constexpr int64_t kTokens = 37, kHidden = 12, kWords = 53;
constexpr double kScale = 1.0 / 29;

struct Problem {
  Parameter head;
  at::Tensor hidden, targets;

  explicit Problem(at::ScalarType type) {
    head.name = "head";
    head.weight = noise({kWords, kHidden}, "head", type).requires_grad_(true);
    hidden = noise({1, kTokens, kHidden}, "hidden", type).requires_grad_(true);
    targets = at::arange(kTokens, at::kLong).mul_(7).remainder_(kWords).view({1, kTokens});
    for (const int64_t i : {0, 5, 6, 20, 36}) targets.view(-1)[i] = -100;
  }
  at::Tensor loss(int64_t chunk, double scale = kScale, LossReport* report = nullptr) const {
    return linear_cross_entropy(hidden, head.weight, targets, scale, {chunk}, report);
  }
  std::vector<at::Tensor> take() {
    std::vector<at::Tensor> all = {hidden.grad(), head.weight.grad()};
    hidden.mutable_grad() = at::Tensor();
    head.weight.mutable_grad() = at::Tensor();
    return all;
  }
  // Loss, gradient of hidden states, gradient of the head.
  std::vector<at::Tensor> run(int64_t chunk) {
    const at::Tensor l = loss(chunk);
    l.backward();
    std::vector<at::Tensor> all = take();
    all.insert(all.begin(), l.detach());
    return all;
  }
};

// torch's own operations, in double.
std::vector<at::Tensor> plain_loss(Problem& p) {
  const at::Tensor logits =
      at::linear(p.hidden.to(at::kDouble), p.head.weight.to(at::kDouble)).view({kTokens, kWords});
  const at::Tensor l =
      at::cross_entropy_loss(logits, p.targets.view(-1), {}, at::Reduction::Sum) * kScale;
  l.backward();
  std::vector<at::Tensor> all = p.take();
  all.insert(all.begin(), l.detach());
  return all;
}

const int64_t kChunks[] = {1, 2, 7, 36, 37, 38, 1000};

TEST(Loss, AgreesWithPlainOperations) {
  Problem p(at::kFloat);
  const std::vector<at::Tensor> want = plain_loss(p);
  for (const int64_t chunk : {int64_t{0}, int64_t{5}, int64_t{64}}) {
    const std::vector<at::Tensor> got = p.run(chunk);
    for (size_t i = 0; i < 3; ++i) EXPECT_LT(relative_error(got[i], want[i]), 1e-6) << i;
  }
}

TEST(Loss, AgreesWithPlainOperationsInBFloat16) {
  Problem p(at::kBFloat16);
  const std::vector<at::Tensor> want = plain_loss(p);
  for (const int64_t chunk : {int64_t{0}, int64_t{5}, int64_t{64}}) {
    const std::vector<at::Tensor> got = p.run(chunk);
    EXPECT_LT(relative_error(got[0], want[0]), 2e-3);
    for (size_t i = 1; i < 3; ++i) EXPECT_LT(relative_error(got[i], want[i]), 8e-3) << i;
  }
}

// Capped logits, kept and in chunks, once and twice backward.
TEST(Loss, AgreesWithPlainOperationsWhereLogitsAreCapped) {
  constexpr double kCap = 0.8;
  Problem p(at::kFloat);
  const at::Tensor logits =
      at::linear(p.hidden.to(at::kDouble), p.head.weight.to(at::kDouble)).view({kTokens, kWords});
  const at::Tensor plain = at::cross_entropy_loss(at::tanh(logits / kCap) * kCap,
                                                  p.targets.view(-1), {}, at::Reduction::Sum);
  (plain * kScale).backward();
  const std::vector<at::Tensor> want = p.take();
  for (const int64_t chunk : {0, 5, 64}) {
    const at::Tensor l =
        linear_cross_entropy(p.hidden, p.head.weight, p.targets, kScale, {chunk}, nullptr, kCap);
    EXPECT_LT(relative_error(l.detach(), plain.detach() * kScale), 1e-6) << chunk;
    for (const bool keep : {true, false}) {
      torch::autograd::backward({l}, {}, keep);
      const std::vector<at::Tensor> got = p.take();
      for (size_t i = 0; i < 2; ++i) EXPECT_LT(relative_error(got[i], want[i]), 2e-6) << chunk;
    }
  }
}

TEST(Loss, ChunksChangeRoundingOnly) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Problem p(type);
    const std::vector<at::Tensor> whole = p.run(0);
    for (const int64_t chunk : kChunks) {
      const std::vector<at::Tensor> got = p.run(chunk);
      if (chunk >= kTokens) {
        EXPECT_TRUE(same_bits(got, whole)) << chunk;
        continue;
      }
      const double allowed = type == at::kFloat ? 1e-6 : 6e-3;
      EXPECT_LT(relative_error(got[0], whole[0]), allowed) << chunk;
      EXPECT_LT(relative_error(got[1], whole[1]), allowed) << chunk;
      EXPECT_LT(relative_error(got[2], whole[2]), allowed) << chunk;
    }
  }
}

TEST(Loss, IgnoredTokensCostNothing) {
  Problem p(at::kFloat);
  for (const int64_t chunk : {0, 5, 64}) {
    const at::Tensor g = p.run(chunk)[1];
    EXPECT_EQ(g.view({kTokens, kHidden})[5].abs().max().item<float>(), 0);
    EXPECT_GT(g.view({kTokens, kHidden})[4].abs().max().item<float>(), 0);
  }
  p.targets.fill_(-100);
  for (const int64_t chunk : {0, 5, 64}) {
    for (const at::Tensor& t : p.run(chunk)) EXPECT_EQ(t.abs().max().item<float>(), 0) << chunk;
  }
}

// A mean over no targets, and a loss that is scaled out of range: torch's gradient of a token
// without a target is 0 whatever comes.
TEST(Loss, WhatNoTargetReachesStaysZeroUnderAnyGradient) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Problem some(type), none(type);
    none.targets.fill_(-100);
    for (const double factor : {INFINITY, -INFINITY, NAN}) {
      for (const int64_t chunk : {0, 5, 64}) {
        for (const bool keep : {true, false}) {
          (none.loss(chunk) * factor).backward({}, keep);
          for (const at::Tensor& g : none.take()) {
            EXPECT_EQ(g.abs().max().item<float>(), 0) << factor << " " << chunk;
          }
          (some.loss(chunk) * factor).backward({}, keep);
          const std::vector<at::Tensor> g = some.take();
          const at::Tensor rows = g[0].view({kTokens, kHidden});
          for (int64_t i = 0; i < kTokens; ++i) {
            const bool target = some.targets.view(-1)[i].item<int64_t>() != -100;
            EXPECT_EQ(rows[i].isfinite().any().item<bool>(), !target) << i;
            EXPECT_EQ(rows[i].eq(0).all().item<bool>(), !target) << i;
          }
          EXPECT_FALSE(g[1].isfinite().any().item<bool>()) << factor << " " << chunk;
        }
      }
    }
    for (const int64_t chunk : {0, 5, 64}) {
      none.loss(chunk, INFINITY).backward();
      for (const at::Tensor& g : none.take()) EXPECT_EQ(g.abs().max().item<float>(), 0) << chunk;
    }
  }
}

TEST(Loss, NoTokens) {
  Problem p(at::kFloat);
  p.hidden = at::empty({1, 0, kHidden}).requires_grad_(true);
  p.targets = at::empty({1, 0}, at::kLong);
  for (const int64_t chunk : {0, 5}) {
    const std::vector<at::Tensor> got = p.run(chunk);
    EXPECT_EQ(got[0].item<float>(), 0);
    EXPECT_EQ(got[1].sizes(), p.hidden.sizes());
    EXPECT_EQ(got[2].abs().max().item<float>(), 0);
  }
}

TEST(Loss, WithoutGradientsOnlyTheLoss) {
  install_counting_allocator();
  Problem p(at::kFloat);
  const at::Tensor want = p.run(0)[0];
  const at::NoGradGuard no_grad;
  for (const int64_t chunk : {0, 5, 64}) {
    const int64_t before = live_bytes(at::kCPU);
    const at::Tensor l = p.loss(chunk);
    EXPECT_EQ(live_bytes(at::kCPU) - before, 4);
    EXPECT_FALSE(l.requires_grad());
    EXPECT_LT(relative_error(l, want), 1e-6);
  }
}

TEST(Loss, AFrozenHeadOrFrozenStatesSaveTheirGradient) {
  install_counting_allocator();
  Problem p(at::kFloat);
  for (const int64_t chunk : {0, 5, 64}) {
    const std::vector<at::Tensor> want = p.run(chunk);
    LossReport whole, report;
    p.loss(chunk, kScale, &whole);

    p.head.weight.requires_grad_(false);
    int64_t before = live_bytes(at::kCPU);
    at::Tensor l = p.loss(chunk, kScale, &report);
    EXPECT_EQ(live_bytes(at::kCPU) - before, 4 + report.bytes());
    // The hidden states are read for the head's gradient only.
    EXPECT_EQ(whole.bytes() - report.bytes(), (chunk ? kWords : kTokens) * kHidden * 4);
    l.backward();
    EXPECT_TRUE(same_bits(p.take(), {want[1], at::Tensor()})) << chunk;
    p.head.weight.requires_grad_(true);

    p.hidden.requires_grad_(false);
    l = p.loss(chunk, kScale, &report);
    if (chunk) {
      EXPECT_EQ(whole.bytes() - report.bytes(), kTokens * kHidden * 4);
    }
    l.backward();
    EXPECT_TRUE(same_bits(p.take(), {at::Tensor(), want[2]})) << chunk;
    p.hidden.requires_grad_(true);
  }
}

TEST(Loss, HoldsTheBytesPredicted) {
  install_counting_allocator();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Problem p(type);
    const auto size = static_cast<int64_t>(c10::elementSize(type));
    for (const int64_t chunk : {0, 5, 64}) {
      LossReport report;
      const int64_t before = live_bytes(at::kCPU);
      const at::Tensor l = p.loss(chunk, kScale, &report);
      const int64_t held = live_bytes(at::kCPU) - before - 4;
      // Logits and f32 log-probabilities, or the gradients of hidden states and head.
      // And of each token, whether it has a target.
      const int64_t logits =
          kTokens + (chunk ? (kTokens + kWords) * kHidden * size : kTokens * kWords * (size + 4));
      EXPECT_EQ(held, logits) << chunk;
      EXPECT_EQ(report.logits, logits) << chunk;
      EXPECT_EQ(report.hidden, chunk ? 0 : kTokens * kHidden * size) << chunk;
    }
  }
}

TEST(Loss, GradientOfALossTimesThree) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Problem p(type);
    for (const int64_t chunk : {0, 5, 64}) {
      const std::vector<at::Tensor> once = p.run(chunk);
      (p.loss(chunk) * 3).backward();
      const std::vector<at::Tensor> thrice = p.take();
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_TRUE(same_bits(thrice[i], once[i + 1] * 3)) << chunk << " " << i;
      }
    }
  }
}

TEST(Loss, SecondBackwardNeedsARetainedGraph) {
  Problem p(at::kFloat);
  for (const int64_t chunk : {0, 5, 64}) {
    const std::vector<at::Tensor> once = p.run(chunk);
    const at::Tensor l = p.loss(chunk);
    l.backward({}, /*retain_graph=*/true);
    l.backward();
    const std::vector<at::Tensor> twice = p.take();
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(twice[i], once[i + 1] * 2)) << chunk;
    EXPECT_THROW(l.backward(), c10::Error);
    p.take();

    const at::Tensor tripled = p.loss(chunk);
    (tripled * 3).backward({}, true);
    (tripled * 2).backward();
    const std::vector<at::Tensor> five = p.take();
    for (size_t i = 0; i < 2; ++i) EXPECT_LT(relative_error(five[i], once[i + 1] * 5), 1e-6);
  }
}

TEST(Loss, StatesOrHeadChangedInPlaceAreRefusedWhereBackwardReadsThem) {
  Problem p(at::kFloat);
  for (const bool head : {false, true}) {
    const at::Tensor l = p.loss(0);
    {
      const at::NoGradGuard no_grad;
      (head ? p.head.weight : p.hidden).mul_(1);
    }
    EXPECT_THROW(l.backward(), c10::Error);
  }
}

// Whatever is frozen; chunks have read them by then.
TEST(Loss, TargetsChangedInPlaceAreRefusedWhereBackwardReadsThem) {
  for (const bool frozen_head : {false, true}) {
    Problem p(at::kFloat);
    (frozen_head ? p.head.weight : p.hidden).requires_grad_(false);
    const at::Tensor whole = p.loss(0), chunks = p.loss(5);
    p.targets.fill_(1);
    EXPECT_THROW(whole.backward(), c10::Error) << frozen_head;
    EXPECT_NO_THROW(chunks.backward()) << frozen_head;
  }
}

TEST(Loss, ADroppedGraphLeavesNothingBehind) {
  install_counting_allocator();
  Problem p(at::kFloat);
  const int64_t before = live_bytes(at::kCPU);
  for (const int64_t chunk : {0, 5, 64}) p.loss(chunk);
  EXPECT_EQ(live_bytes(at::kCPU), before);
}

// Only a chunk of the logits exists at any time.
TEST(Loss, PeakOfChunks) {
  install_counting_allocator();
  Problem p(at::kFloat);
  reset_peak(at::kCPU);
  const int64_t before = live_bytes(at::kCPU);
  const at::Tensor l = p.loss(4);
  const int64_t results = (kTokens + kWords) * kHidden * 4;
  EXPECT_LT(peak_bytes(at::kCPU) - before, results + 4 * kWords * 4 + kTokens * 16 + 2048);
  EXPECT_LT(peak_bytes(at::kCPU) - before, kTokens * kWords * 4);
}

TEST(Loss, RefusesBadInput) {
  Problem p(at::kFloat);
  for (const int64_t bad : {int64_t{-1}, int64_t{-101}, kWords}) {
    Problem q(at::kFloat);
    q.targets.view(-1)[3] = bad;
    EXPECT_THROW(q.loss(5), InputError) << bad;
  }
  EXPECT_THROW(linear_cross_entropy(p.hidden, p.head.weight, p.targets.to(at::kInt), 1, {0}),
               InputError);
  EXPECT_THROW(linear_cross_entropy(p.hidden, p.head.weight, p.targets.narrow(1, 0, 5), 1, {0}),
               InputError);
  EXPECT_THROW(linear_cross_entropy(p.hidden.narrow(2, 0, 5), p.head.weight, p.targets, 1, {0}),
               InputError);
}

TEST(LossTreatment, FromSpecs) {
  const auto tokens = [](const char* text, int64_t vocabulary, c10::DeviceType device) {
    return LossTreatment::from(Treatment::parse(text), vocabulary, device).chunk_tokens;
  };
  for (const c10::DeviceType device : {c10::kCPU, c10::kCUDA}) {
    EXPECT_EQ(tokens("keep", 32000, device), 0);
    EXPECT_EQ(tokens("chunk:tokens=7", 32000, device), 7);
    EXPECT_EQ(tokens("chunk", int64_t{1} << 40, device), 64);
    EXPECT_THROW(tokens("recompute", 32000, device), InputError);
  }
  EXPECT_EQ(tokens("chunk", 32768, c10::kCPU), 512);
  EXPECT_EQ(tokens("chunk", 32000, c10::kCPU), 512);
  EXPECT_EQ(tokens("chunk", 32768, c10::kCUDA), 4096);
  EXPECT_EQ(tokens("chunk", 32000, c10::kCUDA), 4160);
}

}  // namespace
}  // namespace compact
