// SPDX-License-Identifier: Apache-2.0
// SGD and Adam beside their definitions (torch.optim): SGD: g <- grad + decay w, m <- momentum m +
// g, w <- w - rate m.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "compact/optim/optimizer.h"
#include "tests/optim/toy.h"

namespace compact {
namespace {

TEST(Sgd, FollowsItsDefinition) {
  for (const double momentum : {0.0, 0.9}) {
    const at::Tensor matrix = at::randn({5, 7}), bias = at::randn({5});
    Parameter w{.name = "w", .weight = matrix.clone().requires_grad_(true), .parts = {5}};
    Parameter b{.name = "b", .weight = bias.clone().requires_grad_(true), .decay = false};
    Optimizer optimizer({&w, &b},
                        {.kind = &sgd_optimizer, .weight_decay = 0.1, .sgd_momentum = momentum});
    at::Tensor ws = matrix.to(at::kDouble), bs = bias.to(at::kDouble);
    at::Tensor wm = at::zeros_like(ws), bm = at::zeros_like(bs);
    for (int step = 0; step < 20; ++step) {
      const at::Tensor wg = at::randn({5, 7}), bg = at::randn({5});
      w.weight.mutable_grad() = wg.clone();
      b.weight.mutable_grad() = bg.clone();
      const double rate = 0.1 / (1 + step), scale = 0.5;
      optimizer.step(rate, at::tensor(static_cast<float>(scale)));
      wm = wm * momentum + wg.to(at::kDouble) * scale + ws * 0.1;
      bm = bm * momentum + bg.to(at::kDouble) * scale;
      ws = ws - wm * rate;
      bs = bs - bm * rate;
    }
    EXPECT_TRUE(at::allclose(w.weight.to(at::kDouble), ws, 1e-5, 1e-5)) << momentum;
    EXPECT_TRUE(at::allclose(b.weight.to(at::kDouble), bs, 1e-5, 1e-5)) << momentum;
    EXPECT_EQ(optimizer.bytes().count("momentum"), momentum > 0);
    EXPECT_EQ(optimizer.state().tensors.size(), momentum > 0 ? 2U : 0U);
  }
}

// Nothing follows the basis to a new projection where nothing is held.
TEST(Sgd, WithoutMomentumProjectionsAreDrawnAnew) {
  Toy toy({.projection = "srht", .period = 1});
  Optimizer optimizer(toy.pointers(), {.kind = &sgd_optimizer, .sgd_momentum = 0});
  for (int64_t step = 0; step < 2; ++step) {
    toy.accumulate(step);
    optimizer.step(0.01);
  }
  EXPECT_EQ(toy.parameters[0].carrier->draw, 2);
}

// Adam's moments see the decay; beside its definition in f64.
TEST(Adam, FollowsItsDefinition) {
  const at::Tensor matrix = at::randn({5, 7});
  Parameter w{.name = "w", .weight = matrix.clone().requires_grad_(true), .parts = {5}};
  Optimizer optimizer({&w}, {.kind = &adam_optimizer, .eps = 1e-8, .weight_decay = 0.1});
  at::Tensor ws = matrix.to(at::kDouble), m = at::zeros_like(ws), v = at::zeros_like(ws);
  for (int step = 1; step <= 20; ++step) {
    const at::Tensor g = at::randn({5, 7});
    w.weight.mutable_grad() = g.clone();
    optimizer.step(0.01, at::tensor(0.5f));
    const at::Tensor whole = g.to(at::kDouble) * 0.5 + ws * 0.1;
    m = m * 0.9 + whole * 0.1;
    v = v * 0.999 + whole.square() * 0.001;
    const at::Tensor down = (v / (1 - std::pow(0.999, step))).sqrt() + 1e-8;
    ws = ws - m / (1 - std::pow(0.9, step)) / down * 0.01;
  }
  EXPECT_TRUE(at::allclose(w.weight.to(at::kDouble), ws, 1e-4, 1e-5));
}

}  // namespace
}  // namespace compact
