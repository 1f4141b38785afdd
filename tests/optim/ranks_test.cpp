// SPDX-License-Identifier: Apache-2.0
// An optimizer on several ranks makes the updates that one process makes of all their gradients,
// for every row of the table, whoever has its state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "tests/optim/every_optimizer.h"
#include "tests/parallel/threads.h"

namespace compact {
namespace {

constexpr int kRanks = static_cast<int>(Toy::kMicroBatches);
constexpr int64_t kSteps = 7;
constexpr double kRate = 0.01, kMaxNorm = 0.2;

void update(Optimizer& optimizer) {
  optimizer.sum_over_ranks();
  optimizer.step(kRate, Optimizer::clip_factor(optimizer.gradient_norm(), kMaxNorm));
}

// One process, with all micro-batches.
void train_alone(Toy& toy, Optimizer& optimizer, int64_t first, int64_t last) {
  for (int64_t step = first; step < last; ++step) {
    for (int64_t micro = 0; micro < kRanks; ++micro) {
      optimizer.begin_backward(kRate, {}, micro + 1 == kRanks);
      toy.accumulate(step, micro);
      optimizer.end_backward();
    }
    update(optimizer);
  }
}

// A rank, with its own micro-batches.
void train_rank(Toy& toy, Optimizer& optimizer, int64_t rank, int64_t first, int64_t last) {
  for (int64_t step = first; step < last; ++step) {
    optimizer.begin_backward(kRate);
    toy.accumulate(step, rank);
    update(optimizer);
  }
}

std::map<std::string, at::Tensor> named(const OptimizerState& state) {
  return {state.tensors.begin(), state.tensors.end()};
}

void check_ranks(const ToyOptions& how, OptimizerOptions options) {
  Toy alone(how);
  Optimizer one(alone.pointers(), options);
  train_alone(alone, one, 0, kSteps);
  const std::map<std::string, at::Tensor> all = named(one.state());
  std::mutex mutex;
  OptimizerState merged;
  std::set<std::string> found;
  with_shared_ranks(kRanks, [&](const std::shared_ptr<Group>& group) {
    OptimizerOptions own = options;
    own.group = group;
    Toy toy(how);
    Optimizer optimizer(toy.pointers(), own);
    train_rank(toy, optimizer, group->rank(), 0, kSteps);
    expect_equal_weights(alone, toy);
    const std::lock_guard lock(mutex);
    for (const auto& [name, t] : optimizer.state().tensors) {
      EXPECT_TRUE(at::equal(t, all.at(name))) << name << " on rank " << group->rank();
      EXPECT_FALSE(optimizer.is_elsewhere(name)) << name;
      if (found.insert(name).second) merged.tensors.emplace_back(name, t.clone());
    }
    merged.numbers = optimizer.state().numbers;
  });
  EXPECT_EQ(found.size(), all.size());
  // Each goes on from what all have together.
  train_alone(alone, one, kSteps, 2 * kSteps);
  with_shared_ranks(kRanks, [&](const std::shared_ptr<Group>& group) {
    OptimizerOptions own = options;
    own.group = group;
    Toy toy(how);
    Toy before(how);
    Optimizer again(before.pointers(), options);
    train_alone(before, again, 0, kSteps);
    for (size_t i = 0; i < toy.parameters.size(); ++i) {
      toy.parameters[i].weight.copy_(before.parameters[i].weight);
    }
    Optimizer optimizer(toy.pointers(), own);
    optimizer.load(merged);
    train_rank(toy, optimizer, group->rank(), kSteps, 2 * kSteps);
    expect_equal_weights(alone, toy);
  });
}

TEST_P(EveryOptimizer, IsThatOfOneProcessOnRanks) {
  for (const int zero : {0, 1, 2}) {
    for (const char* projection : {"", "srht", "gaussian"}) {
      for (const auto& [type, master, moment] : {std::tuple{at::kFloat, false, "f32"},
                                                 {at::kBFloat16, false, "f8"},
                                                 {at::kBFloat16, true, "f32"}}) {
        SCOPED_TRACE(cat("zero ", zero, " ", projection, " ", c10::toString(type), master));
        OptimizerOptions all = options(master, moment);
        all.zero = zero;
        check_ranks({.projection = projection, .type = type}, all);
      }
    }
  }
}

// Sums are made in every pass under zero 2, and no other rank keeps any.
TEST(Ranks, OwnersAloneHaveSumsUnderZero2) {
  Toy alone({});
  Optimizer one(alone.pointers(), {.f32_sums = true});
  for (const int64_t step : {0, 1}) alone.accumulate(step, 0), alone.accumulate(step, 1);
  one.step(kRate);
  with_shared_ranks(kRanks, [&](const std::shared_ptr<Group>& group) {
    Toy toy({});
    Optimizer optimizer(toy.pointers(), {.f32_sums = true, .group = group, .zero = 2});
    for (const int64_t step : {0, 1}) {
      optimizer.begin_backward(kRate, {}, step == 1);
      toy.accumulate(step, group->rank());
      optimizer.end_backward();
      if (step == 1) break;
      for (const ParameterState& s : optimizer.states()) {
        const bool shared = s.owner == kEveryRank;
        EXPECT_EQ(shared, s.leaf.dim() == 1);
        EXPECT_EQ(s.gradient().defined(), shared) << s.parameter->name;
        EXPECT_EQ(s.total.defined(), !shared && s.is_own()) << s.parameter->name;
      }
    }
    optimizer.sum_over_ranks();
    for (const ParameterState& s : optimizer.states()) {
      EXPECT_EQ(s.gradient().defined(), s.is_own());
    }
    optimizer.step(kRate);
    for (size_t i = 0; i < toy.parameters.size(); ++i) {  // four numbers, in another order
      EXPECT_TRUE(at::allclose(toy.parameters[i].weight, alone.parameters[i].weight, 1e-5, 1e-5));
    }
  });
}

// Gradients in every pass, one for each rank and step, added up as one process does.
TEST_P(EveryOptimizer, SumsPassesOnRanks) {
  constexpr int64_t kPasses = 3;
  for (const int zero : {0, 1, 2, 3}) {
    Toy alone({});
    const OptimizerOptions usual = {.kind = kind_, .sgd_momentum = 0, .f32_sums = true};
    Optimizer one(alone.pointers(), usual);
    for (int64_t pass = 0; pass < kPasses; ++pass) alone.accumulate(pass);
    one.step(kRate);
    with_shared_ranks(kRanks, [&](const std::shared_ptr<Group>& group) {
      OptimizerOptions options = usual;
      options.group = group;
      options.zero = zero;
      Toy toy({});
      Optimizer optimizer(toy.pointers(), options);
      for (int64_t pass = 0; pass < kPasses; ++pass) {
        optimizer.begin_backward(kRate, {}, pass + 1 == kPasses);
        toy.accumulate(pass, group->rank());
        optimizer.end_backward();
      }
      optimizer.sum_over_ranks();
      optimizer.step(kRate);
      for (size_t i = 0; i < toy.parameters.size(); ++i) {
        EXPECT_TRUE(at::allclose(toy.parameters[i].weight, alone.parameters[i].weight, 1e-4, 1e-6))
            << "zero " << zero << " " << i;
      }
    });
  }
}

// The remains of a failure do not enter the next step.
TEST(Ranks, ForgetAStepThatFailed) {
  for (const bool tree : {false, true}) {
    Toy alone({});
    Optimizer one(alone.pointers(), {.tree_sums = tree});
    train_alone(alone, one, 0, 1);
    with_shared_ranks(kRanks, [&](const std::shared_ptr<Group>& group) {
      Toy toy({});
      Optimizer optimizer(toy.pointers(),
                          {.tree_sums = tree, .group = group, .zero = tree ? 1 : 2});
      const OptimizerState before = copy_of(optimizer.state());
      optimizer.begin_backward(kRate, {}, false);
      toy.accumulate(7, group->rank());
      optimizer.end_backward();
      EXPECT_THROW(optimizer.state(), InputError);
      optimizer.load(before);
      train_rank(toy, optimizer, group->rank(), 0, 1);
      expect_equal_weights(alone, toy);
    });
  }
}

TEST(Ranks, RefuseASecondPass) {
  with_shared_ranks(2, [](const std::shared_ptr<Group>& group) {
    for (const int zero : {0, 1}) {
      Toy toy({});
      Optimizer optimizer(toy.pointers(), {.group = group, .zero = zero});
      optimizer.begin_backward(kRate);
      toy.accumulate(0, group->rank());
      EXPECT_THAT([&] { toy.accumulate(1, group->rank()); },
                  testing::ThrowsMessage<InputError>(testing::HasSubstr("a second gradient")));
      optimizer.clear_gradients();
      optimizer.begin_backward(kRate);
      toy.accumulate(0, group->rank());
      optimizer.sum_over_ranks();
      EXPECT_THAT([&] { toy.accumulate(1, group->rank()); },
                  testing::ThrowsMessage<InputError>(testing::HasSubstr("after the sums")));
      optimizer.clear_gradients();
    }
  });
}

TEST(Ranks, SumsInBfloat16WhereAsked) {
  std::mutex mutex;
  std::vector<std::vector<at::Tensor>> sums(kRanks);
  Toy alone({});
  for (int64_t micro = 0; micro < kRanks; ++micro) alone.accumulate(0, micro);
  with_shared_ranks(kRanks, [&](const std::shared_ptr<Group>& group) {
    Toy toy({});
    Optimizer optimizer(toy.pointers(), {.group = group, .reduce_type = at::kBFloat16});
    const int64_t before = group->traffic().bytes;
    optimizer.begin_backward(kRate);
    toy.accumulate(0, group->rank());
    optimizer.sum_over_ranks();
    int64_t bytes = 0;
    for (size_t i = 0; i < toy.parameters.size(); ++i) {
      const at::Tensor &got = toy.parameters[i].leaf().grad(),
                       &want = alone.parameters[i].leaf().grad();
      const bool matrix = got.dim() > 1;
      EXPECT_EQ(at::equal(got, got.to(at::kBFloat16).to(at::kFloat)), matrix);
      EXPECT_LT((got - want).norm().item<double>(), 0.01 * want.norm().item<double>());
      bytes += 2 * got.numel() * (matrix ? 2 : 4);
    }
    EXPECT_EQ(group->traffic().bytes - before, bytes);
  });
}

TEST(Ranks, RefuseGradientsOfOneRankAlone) {
  with_shared_ranks(2, [](const std::shared_ptr<Group>& group) {
    Toy toy({});
    Optimizer optimizer(toy.pointers(), {.group = group, .zero = 1});
    optimizer.begin_backward(kRate);
    toy.accumulate(0, 0);
    EXPECT_THAT([&] { optimizer.step(kRate); },
                testing::ThrowsMessage<InputError>(testing::HasSubstr("sum_over_ranks()")));
    EXPECT_THROW(optimizer.gradient_norm(), InputError);
    EXPECT_THROW(optimizer.begin_backward(kRate), InputError);  // it was the last one
    optimizer.clear_gradients();
    optimizer.begin_backward(kRate);
    toy.accumulate(0, 0);
    update(optimizer);
    EXPECT_THROW(optimizer.step(kRate), InputError);
    toy.parameters[0].release = true;
    EXPECT_THAT([&] { Optimizer(toy.pointers(), {.group = group}); },
                testing::ThrowsMessage<InputError>(testing::HasSubstr("all 2 ranks are known")));
  });
}

TEST(Ranks, NameTheParameterThatIsNotFinite) {
  with_shared_ranks(2, [](const std::shared_ptr<Group>& group) {
    Toy toy({});
    Optimizer optimizer(toy.pointers(), {.group = group, .zero = 1});
    optimizer.begin_backward(kRate);
    toy.accumulate(0, group->rank());
    optimizer.sum_over_ranks();
    const size_t b = 1;
    const ParameterState& s = optimizer.states()[b];
    if (s.is_own()) s.leaf.mutable_grad().fill_(NAN);  // which the other rank does not see
    EXPECT_EQ(optimizer.nonfinite(optimizer.gradient_norm()), "b");
    optimizer.clear_gradients();
  });
}

TEST(Ranks, DealBytesEvenly) {
  const std::vector<int64_t> bytes = {10, 0, 70, 30, 40, 20, 0, 30};
  const std::vector<int> owners = deal_owners(bytes, 3);
  EXPECT_EQ(owners, (std::vector<int>{1, kEveryRank, 0, 2, 1, 1, kEveryRank, 2}));
  EXPECT_EQ(deal_owners(bytes, 1), (std::vector<int>{0, kEveryRank, 0, 0, 0, 0, kEveryRank, 0}));
  Toy toy({});
  std::vector<int64_t> each;
  for (int rank = 0; rank < 3; ++rank) {
    const Optimizer optimizer(toy.pointers(), {.group = planned_group(rank, 3), .zero = 1});
    int64_t held = 0;
    for (const auto& [kind, count] : optimizer.bytes()) held += count;
    const int64_t vectors = 2 * 4 * toy.parameters[2].weight.numel();
    EXPECT_EQ(held, optimizer.dealt_bytes()[static_cast<size_t>(rank)] + vectors);
    each.push_back(held - vectors);
  }
  EXPECT_EQ(each, (std::vector<int64_t>{8 * 480, 8 * 288, 8 * 60}));
}

}  // namespace
}  // namespace compact
