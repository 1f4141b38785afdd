// SPDX-License-Identifier: Apache-2.0
// The purpose of stochastic rounding: bf16 and 8-bit moments move as f32 ones do, where rounding to
// nearest would stand still.
#include <gtest/gtest.h>

#include <cmath>

#include "compact/optim/update.h"
#include "tests/optim/toy.h"

namespace compact {
namespace {

auto moments(const char* type) {
  return [=](const Parameter&) { return std::string(type); };
}

// A moment's values in f32.
at::Tensor values(const Moment& m) { return m.read(0, m.rows()).to(at::kFloat); }

// v follows E[g^2] down after the gradients shrink tenfold, where rounding to nearest stands still.
// 4,096 elements, each within a few percent (bf16) or a third (f8: steps of up to an eighth), so
// their mean is known to 0.2 % and 0.5 %: 2 % is asked.
TEST(Rounding, SecondMomentFollowsTheGradients) {
  constexpr int64_t kCount = 4096, kLoud = 300, kSteps = 4000;
  constexpr double kBeta = 0.999;
  for (const char* type : {"bf16", "f8"}) {
    Parameter p{.name = "w", .weight = at::zeros({kCount})};
    Optimizer optimizer({&p}, {.beta2 = kBeta, .moment = moments(type)});
    at::Tensor nearest = at::zeros({kCount}, at::kBFloat16),
               exact = at::zeros({kCount}, at::kDouble);
    for (int64_t step = 0; step < kSteps; ++step) {
      const at::Tensor g =
          normal({kCount}, 1000 + static_cast<uint64_t>(step), step < kLoud ? 1.0f : 0.1f);
      nearest = (nearest.to(at::kFloat) * kBeta + g.square() * (1 - kBeta)).to(at::kBFloat16);
      exact = exact * kBeta + g.to(at::kDouble).square() * (1 - kBeta);
      p.weight.mutable_grad() = g;
      optimizer.step(0);
    }
    const auto mean = [](const at::Tensor& t) { return t.to(at::kDouble).mean().item<double>(); };
    EXPECT_NEAR(mean(values(optimizer.states()[0].v)) / mean(exact), 1, 0.02) << type;
    EXPECT_GT(mean(nearest) / mean(exact), 2) << "rounding to nearest is as good: idle test";
  }
}

// Momentum carried to a new basis is m P_old^T P_new r/n, in expectation also where it is rounded.
TEST(Rounding, RedrawCarriesMomentsWithoutBias) {
  constexpr int64_t kRows = 4000, kIn = 16, kRank = 4;
  for (const auto& [type, bits] : {std::pair{"bf16", 7}, {"f8", 3}}) {
    auto c = std::make_shared<Carrier>();
    c->value = at::zeros({kRows, kRank});
    c->rows = {kRows};
    c->type = "srht";
    c->in = kIn;
    c->rank = kRank;
    c->period = 1;
    c->redraw(0, at::kFloat);
    Parameter p{.name = "w", .weight = at::zeros({kRows, kIn}), .carrier = c};
    Optimizer optimizer({&p}, {.moment = moments(type)});
    ParameterState s = optimizer.states()[0];
    // Values that f8 holds exactly, too.
    const at::Tensor row = at::tensor({1.0f, -0.375f, 0.109375f, 2.75f});
    s.m.accumulate(0, row.expand({kRows, kRank}).contiguous(), 0, 1, 5);
    ASSERT_TRUE(at::equal(values(s.m)[7], row)) << type;
    const ProjectionPtr old = c->projections[0];
    redraw(s, {}, 1);
    const at::Tensor overlap = old->matrix().t().mm(c->projections[0]->matrix());
    const at::Tensor wanted = row.unsqueeze(0).mm(overlap)[0] * kRank / kIn;
    // A unit is at most 2^-bits of a value; its rounding error has standard deviation up to half a
    // unit, and 4,000 rows are averaged: five standard errors.
    const at::Tensor bound =
        wanted.abs() * (std::pow(2.0, -bits) / 2 * 5 / std::sqrt(kRows)) + 1e-6;
    const at::Tensor mean = values(s.m).mean(0);
    EXPECT_TRUE(((mean - wanted).abs() <= bound).all().item<bool>()) << type << mean << wanted;
  }
}

}  // namespace
}  // namespace compact
