// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/preference_loss.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "compact/base/check.h"
#include "compact/ops/functions/range_attention.h"
#include "tests/ops/block.h"

namespace compact {
namespace {

constexpr int64_t kRows = 3, kRowLength = 11, kStateWidth = 12, kTerms = 53;
constexpr double kOfPairs = 1.0 / 3;

// Three pairs, with padding between and behind answers, and tokens without a target in all.
struct Pairs {
  at::Tensor head, hidden, targets, reference;
  std::vector<std::array<int64_t, 3>> places = {{0, 0, 5}, {0, 5, 11}, {1, 0, 3},
                                                {1, 4, 9}, {2, 1, 6},  {2, 6, 8}};
  double softcap = 0;

  explicit Pairs(at::ScalarType type) {
    head = noise({kTerms, kStateWidth}, "head", type).requires_grad_(true);
    hidden = noise({kRows, kRowLength, kStateWidth}, "hidden", type).requires_grad_(true);
    targets = at::arange(kRows * kRowLength).mul_(7).remainder_(kTerms).view({kRows, kRowLength});
    for (const int64_t i : {0, 1, 5, 6, 11, 14, 15, 20, 21, 22, 23, 30, 31, 32}) {
      targets.view(-1)[i] = -100;
    }
    reference = -10 * noise({kRows, 2}, "reference", at::kFloat).abs().to(at::kDouble);
  }
  at::Tensor loss(const PreferenceLoss& how, int64_t chunk, PreferenceScore* score = nullptr,
                  LossReport* report = nullptr) const {
    return preference_loss(hidden, head, targets, ranges_tensor(places), reference, how, kOfPairs,
                           {chunk}, report, softcap, score);
  }
  // Loss, gradients of hidden states and head.
  std::vector<at::Tensor> run(const at::Tensor& l) const {
    const auto grads = torch::autograd::grad({l}, {hidden, head});
    return {l.detach(), grads[0], grads[1]};
  }
  // The formulas as the papers have them, by torch's own operations in double.
  at::Tensor plain(const PreferenceLoss& how) const {
    at::Tensor logits = at::linear(hidden.to(at::kDouble), head.to(at::kDouble));
    if (softcap > 0) logits = at::tanh(logits / softcap) * softcap;
    const at::Tensor all = at::log_softmax(logits, -1);
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (size_t pair = 0; pair < places.size() / 2; ++pair) {
      at::Tensor ratio[2];
      for (size_t i = 0; i < 2; ++i) {
        const auto& [row, begin, end] = places[2 * pair + i];
        ratio[i] = at::zeros({}, at::kDouble);
        int64_t count = 0;
        for (int64_t t = begin; t < end; ++t) {
          const auto word = targets[row][t].item<int64_t>();
          if (word >= 0) ratio[i] = ratio[i] + all[row][t][word], ++count;
        }
        ratio[i] = ratio[i] - reference[static_cast<int64_t>(pair)][static_cast<int64_t>(i)];
        if (how.kind == PreferenceKind::kIpo) ratio[i] = ratio[i] / count;
      }
      const at::Tensor m = ratio[0] - ratio[1], z = how.beta * m;
      if (how.kind == PreferenceKind::kHinge) {
        sum = sum + at::relu(1 - z);
      } else if (how.kind == PreferenceKind::kIpo) {
        sum = sum + at::square(m - 1 / (2 * how.beta));
      } else {
        sum = sum - (1 - how.smoothing) * at::log_sigmoid(z) - how.smoothing * at::log_sigmoid(-z);
      }
    }
    return sum * kOfPairs;
  }
};

const PreferenceLoss kHow[] = {{},
                               {.beta = 0.5, .smoothing = 0.2},
                               {.kind = PreferenceKind::kHinge, .beta = 0.3},
                               {.kind = PreferenceKind::kIpo, .beta = 0.7}};

TEST(PreferenceLoss, AgreesWithThePapersFormulas) {
  for (const double softcap : {0.0, 2.5}) {
    Pairs p(at::kFloat);
    p.softcap = softcap;
    for (const PreferenceLoss& how : kHow) {
      const std::vector<at::Tensor> want = p.run(p.plain(how));
      for (const int64_t chunk : {0, 1, 8, 33, 64}) {
        const std::vector<at::Tensor> got = p.run(p.loss(how, chunk));
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_LT(relative_error(got[i], want[i]), 2e-6)
              << i << " chunk " << chunk << " kind " << static_cast<int>(how.kind);
        }
      }
    }
  }
}

TEST(PreferenceLoss, AgreesInBFloat16) {
  const Pairs p(at::kBFloat16);
  for (const PreferenceLoss& how : kHow) {
    const std::vector<at::Tensor> want = p.run(p.plain(how));
    for (const int64_t chunk : {0, 8, 64}) {
      const std::vector<at::Tensor> got = p.run(p.loss(how, chunk));
      for (size_t i = 1; i < 3; ++i) EXPECT_LT(relative_error(got[i], want[i]), 1.5e-2) << chunk;
    }
  }
}

TEST(PreferenceLoss, OfTheReferenceItselfIsLogTwo) {
  Pairs p(at::kFloat);
  PreferenceScore score;
  p.loss({}, 8, &score);
  p.reference = score.log_probs;
  const at::Tensor loss = p.loss({}, 8, &score);
  EXPECT_FLOAT_EQ(loss.item<float>(), std::log(2.0F));
  EXPECT_EQ(score.rewards.abs().max().item<double>(), 0);
}

// A loss without a graph has the same bits, and needs no gradients' memory.
TEST(PreferenceLoss, ScoresWithoutAGraph) {
  const Pairs p(at::kFloat);
  const at::Tensor with = p.loss(kHow[1], 8).detach();
  const at::NoGradGuard none;
  EXPECT_TRUE(p.loss(kHow[1], 8).equal(with));
  EXPECT_FALSE(p.loss(kHow[1], 8).requires_grad());
}

// Only answers' tokens get a gradient, and the two of a pair opposite ones.
TEST(PreferenceLoss, LeavesPromptsAlone) {
  const Pairs p(at::kFloat);
  const at::Tensor g = p.run(p.loss({}, 8))[1].view({-1, kStateWidth});
  EXPECT_TRUE(g.index({p.targets.view(-1).eq(-100)}).eq(0).all().item<bool>());
  EXPECT_TRUE(g.index({p.targets.view(-1).ne(-100)}).abs().sum(1).gt(0).all().item<bool>());
}

TEST(PreferenceLoss, RefusesByRule) {
  Pairs p(at::kFloat);
  const auto said = [&](const PreferenceLoss& how = {}) {
    try {
      p.loss(how, 8);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_THAT(said({.beta = 0}), testing::HasSubstr("beta must be above 0, is 0"));
  EXPECT_THAT(said({.smoothing = 0.5}), testing::HasSubstr("in [0, 0.5), is 0.5"));
  p.places.pop_back();
  EXPECT_THAT(said(), testing::HasSubstr("two ranges a pair, has 5"));
  p.places.pop_back();
  EXPECT_THAT(said(), testing::HasSubstr("reference must be f64 [2, 2]"));
}

}  // namespace
}  // namespace compact
