// SPDX-License-Identifier: Apache-2.0
// Saving and loading: training goes on bit for bit, and what does not fit is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"
#include "tests/optim/toy.h"

namespace compact {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

OptimizerState copy_of(const OptimizerState& s) {
  OptimizerState copy{.numbers = s.numbers};
  for (const auto& [name, t] : s.tensors) copy.tensors.emplace_back(name, t.clone());
  return copy;
}

// Stops in the middle of a projection period and of an accumulation, and goes on in a fresh model.
void check_resume(const ToyOptions& toy, const OptimizerOptions& options) {
  constexpr int64_t kStop = 7, kEnd = 13;
  Toy straight(toy), resumed(toy);
  Optimizer optimizer(straight.pointers(), options);
  for (int64_t step = 0; step < kStop; ++step) {
    optimizer.begin_backward(0.01);
    straight.accumulate(step);
    optimizer.step(0.01);
  }
  optimizer.begin_backward(0.01);
  straight.accumulate(kStop, 0);
  const OptimizerState saved = copy_of(optimizer.state());
  for (size_t i = 0; i < resumed.parameters.size(); ++i) {
    resumed.parameters[i].weight.copy_(straight.parameters[i].weight);
  }
  Optimizer again(resumed.pointers(), options);
  again.load(saved);
  EXPECT_EQ(again.updates(), kStop);
  for (int64_t step = kStop; step < kEnd; ++step) {
    for (auto [model, o] : {std::pair{&straight, &optimizer}, {&resumed, &again}}) {
      o->begin_backward(0.01);
      if (step > kStop) model->accumulate(step, 0);
      model->accumulate(step, 1);
      o->step(0.01, Optimizer::clip_factor(o->gradient_norm(), 0.2));
    }
  }
  for (size_t i = 0; i < resumed.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(straight.parameters[i].weight, resumed.parameters[i].weight)) << i;
  }
  const OptimizerState one = optimizer.state(), two = again.state();
  EXPECT_EQ(one.numbers, two.numbers);
  ASSERT_EQ(one.tensors.size(), two.tensors.size());
  for (size_t i = 0; i < one.tensors.size(); ++i) {
    EXPECT_TRUE(at::equal(one.tensors[i].second, two.tensors[i].second)) << one.tensors[i].first;
  }
}

TEST(State, ResumesBitForBit) {
  std::vector<std::string> types = {""};
  for (const ProjectionInfo* info : projections()) types.push_back(info->name);
  for (const std::string& projection : types) {
    for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kMuon}) {
      for (const auto& [type, master] :
           {std::pair{at::kFloat, false}, {at::kBFloat16, false}, {at::kBFloat16, true}}) {
        for (const char* moment : {"f32", "bf16", "f8"}) {
          SCOPED_TRACE(cat(projection, " kind ", static_cast<int>(kind), " ", c10::toString(type),
                           master ? " master " : " ", moment));
          check_resume({.projection = projection, .type = type},
                       {.kind = kind,
                        .weight_decay = 0.1,
                        .master_weights = master,
                        .carry_second = true,
                        .f32_sums = true,
                        .seed = 3,
                        .moment = [=](const Parameter&) { return std::string(moment); }});
        }
      }
    }
  }
}

// What was saved in the middle of a step by one that adds in bf16.
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
  Optimizer muon(toy.pointers(), {.kind = OptimizerKind::kMuon});
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
