// SPDX-License-Identifier: Apache-2.0
// Updates that a value on the device may hold back, and what the host must know before them.
#include <cmath>
#include <limits>

#include "tests/optim/every_optimizer.h"

namespace compact {
namespace {

// Copies of all that an optimizer changes: weights, then its state.
std::vector<at::Tensor> all_of(const Toy& toy, const Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const Parameter& p : toy.parameters) all.push_back(p.weight.clone());
  for (const auto& [name, t] : optimizer.state().tensors) all.push_back(t.clone());
  return all;
}

void expect_same(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& two) {
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], two[i])) << i;
}

// A guard that is 0 is none; with another one an update of NaN changes no bit.
TEST_P(EveryOptimizer, IsHeldBackByAGuard) {
  for (const char* projection : {"", "srht"}) {
    for (const auto& [type, master] :
         {std::pair{at::kFloat, false}, {at::kBFloat16, false}, {at::kBFloat16, true}}) {
      for (const char* moment : {"f32", "bf16", "f8"}) {
        SCOPED_TRACE(cat(projection, " ", c10::toString(type), master ? " master " : " ", moment));
        const ToyOptions shape{.projection = projection, .period = 0, .type = type};
        const OptimizerOptions options{
            .kind = kind_,
            .weight_decay = 0.1,
            .master_weights = master,
            .moment = [=](const Parameter&) { return std::string(moment); }};
        Toy guarded(shape), plain(shape);
        Optimizer one(guarded.pointers(), options), two(plain.pointers(), options);
        const at::Tensor guard = at::zeros({});
        for (int64_t step = 0; step < 3; ++step) {
          guarded.accumulate(step);
          plain.accumulate(step);
          one.step(0.01, at::full({}, 0.5f), guard);
          two.step(0.01, at::full({}, 0.5f));
        }
        const std::vector<at::Tensor> before = all_of(guarded, one);
        expect_same(before, all_of(plain, two));
        guard.fill_(NAN);
        for (const float bad : {NAN, 1.0f}) {
          for (Parameter& p : guarded.parameters) {
            p.leaf().mutable_grad() = at::full_like(p.leaf(), bad);
          }
          one.step(0.01, at::full({}, bad), guard);
          expect_same(all_of(guarded, one), before);
        }
      }
    }
  }
}

TEST_P(EveryOptimizer, TakesScalarsOfItsDeviceOnly) {
  Toy toy({});
  Optimizer optimizer(toy.pointers(), {.kind = kind_});
  toy.accumulate(0);
  for (const at::Tensor& bad :
       {at::zeros({}, at::kDouble), at::zeros({2}), at::zeros({}, at::device(at::kMeta))}) {
    EXPECT_THROW(optimizer.step(0.01, bad), InputError);
    EXPECT_THROW(optimizer.step(0.01, {}, bad), InputError);
    EXPECT_THROW(optimizer.begin_backward(0.01, bad), InputError);
  }
  EXPECT_EQ(optimizer.updates(), 0);
}

TEST_P(EveryOptimizer, SaysWhenProjectionsAreRedrawn) {
  Toy projected({.projection = "srht", .period = 3}), full({});
  Optimizer one(projected.pointers(), {.kind = kind_}), two(full.pointers(), {.kind = kind_});
  for (int64_t step = 1; step <= 7; ++step) {
    EXPECT_EQ(one.redraws_next(), step % 3 == 0) << step;
    EXPECT_FALSE(two.redraws_next());
    const int64_t before = projected.parameters[0].carrier->draw;
    projected.accumulate(step);
    one.step(0.01);
    EXPECT_EQ(projected.parameters[0].carrier->draw - before, step % 3 == 0);
  }
}

}  // namespace
}  // namespace compact
