// SPDX-License-Identifier: Apache-2.0
// Saving and loading: what does not fit is refused, what was begun is ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"
#include "tests/optim/toy.h"

namespace compact {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// A state saved in the middle of a step by an optimizer that adds in bf16.
TEST(State, TakesBf16GradientsIntoSums) {
  Toy toy({.projection = "srht", .type = at::kBFloat16});
  OptimizerState state;
  {
    Optimizer plain(toy.pointers(), {});
    toy.accumulate(0, 0);
    state = copy_of(plain.state());
  }
  Optimizer optimizer(toy.pointers(), {.f32_sums = true});
  optimizer.load(state);
  for (const ParameterState& s : optimizer.states()) {
    EXPECT_EQ(s.gradient().scalar_type(), at::kFloat);
    EXPECT_FALSE(s.parameter->leaf().grad().defined());
  }
  const OptimizerState sums = copy_of(optimizer.state());
  optimizer.begin_backward(0.01);
  toy.accumulate(0, 1);
  optimizer.step(0.01);
  Toy other({.projection = "srht", .type = at::kBFloat16});
  Optimizer plain(other.pointers(), {});
  EXPECT_THAT([&] { plain.load(sums); },
              ThrowsMessage<InputError>(HasSubstr("`a.grad` must be BFloat16")));
}

// A pass that updates parameters inside it and ends half-way.
TEST(State, LoadingEndsAHalfDonePass) {
  for (const bool load : {false, true}) {
    Toy toy({});
    for (Parameter& p : toy.parameters) p.release = true;
    Optimizer optimizer(toy.pointers(), {});
    const at::Tensor before = toy.parameters[3].weight.clone();
    const OptimizerState start = copy_of(optimizer.state());
    optimizer.begin_backward(0.01);
    Toy::add(toy.parameters[3], at::ones_like(before));
    EXPECT_FALSE(at::equal(toy.parameters[3].weight, before));
    EXPECT_THROW(optimizer.begin_backward(0.01), InputError);
    EXPECT_THROW(optimizer.step(0.01), InputError);
    if (load) {
      optimizer.load(start);
    } else {
      optimizer.clear_gradients();
    }
    EXPECT_EQ(optimizer.gradient_norm().item<float>(), 0);
    EXPECT_NO_THROW(optimizer.begin_backward(0.02));
    for (const Parameter& p : toy.parameters) Toy::add(p, at::ones_like(p.weight));
    optimizer.step(0.02);
    EXPECT_EQ(optimizer.updates(), 1);
  }
}

TEST(State, SeedsChangeStochasticRoundingOnly) {
  Toy one({.type = at::kBFloat16}), two({.type = at::kBFloat16});
  Optimizer first(one.pointers(), {.seed = 1}), second(two.pointers(), {.seed = 2});
  one.accumulate(0);
  two.accumulate(0);
  first.step(0.01);
  second.step(0.01);
  EXPECT_FALSE(at::equal(one.parameters[0].weight, two.parameters[0].weight));
  EXPECT_TRUE(at::allclose(one.parameters[0].weight, two.parameters[0].weight, 0.01, 1e-4));
}

TEST(State, RefusesWhatDoesNotFit) {
  Toy toy({.projection = "srht"});
  Optimizer optimizer(toy.pointers(), {});
  toy.accumulate(0);
  optimizer.step(0.01);
  const OptimizerState good = copy_of(optimizer.state());
  optimizer.load(good);
  const auto refused = [&](auto change, const char* message) {
    OptimizerState bad = copy_of(good);
    change(bad);
    EXPECT_THAT([&] { optimizer.load(bad); }, ThrowsMessage<InputError>(HasSubstr(message)));
  };
  refused([](OptimizerState& s) { s.tensors.erase(s.tensors.begin()); }, "`a.m` is missing");
  refused([](OptimizerState& s) { s.tensors.emplace_back("z.m", at::zeros({1})); },
          "`z.m` belongs");
  refused([](OptimizerState& s) { s.tensors.push_back(s.tensors[0]); }, "`a.m` comes twice");
  refused(
      [](OptimizerState& s) {
        s.tensors[0].second = at::zeros({2, 2});
      },
      "`a.m` must be Float");
  refused([](OptimizerState& s) { s.tensors[0].second = s.tensors[0].second.to(at::kBFloat16); },
          "is BFloat16");
  refused([](OptimizerState& s) { s.tensors.emplace_back("a.grad", at::zeros({2})); }, "`a.grad`");
  refused([](OptimizerState& s) { s.numbers.erase("updates"); }, "`updates` is missing");
  refused([](OptimizerState& s) { s.numbers["updates"] = -1; }, "must not be negative");
  refused([](OptimizerState& s) { s.numbers["draw.a"] = -1; }, "must not be negative");
  refused([](OptimizerState& s) { s.numbers["draw.b"] = 0; }, "`draw.b` belongs");
  Optimizer muon(toy.pointers(), {.kind = &muon_optimizer});
  EXPECT_THROW(muon.load(good), InputError);
  // Nothing of a refused state is taken.
  const OptimizerState now = optimizer.state();
  EXPECT_EQ(now.numbers, good.numbers);
  for (size_t i = 0; i < now.tensors.size(); ++i) {
    EXPECT_TRUE(at::equal(now.tensors[i].second, good.tensors[i].second));
  }
}

}  // namespace
}  // namespace compact
