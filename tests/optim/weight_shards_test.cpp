// SPDX-License-Identifier: Apache-2.0
// Weights that are with one rank and come to the others for a while.
#include "compact/optim/weight_shards.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"
#include "tests/optim/toy.h"
#include "tests/parallel/threads.h"

namespace compact {
namespace {

at::Tensor weight_of(int segment, int number) {
  return at::arange(6, at::kFloat).view({2, 3}) + 100 * segment + 10 * number;
}

// Three segments of two weights, which rank 0 and 1 have in turn.
struct Weights {
  std::vector<std::vector<WeightShards::Shard>> segments;

  Weights() {
    for (int segment = 0; segment < 3; ++segment) {
      segments.emplace_back();
      for (const int number : {0, 1}) {
        segments.back().push_back({weight_of(segment, number), (segment + number) % 2});
      }
    }
  }
  // Whether this rank has the values of a segment; of another's weight the memory is there or not.
  bool has(int segment, int rank) const {
    int there = 0;
    for (const int number : {0, 1}) {
      const auto& [weight, owner] =
          segments[static_cast<size_t>(segment)][static_cast<size_t>(number)];
      const bool memory = weight.storage().nbytes() > 0;
      EXPECT_TRUE(memory || owner != rank);
      if (!memory) continue;
      EXPECT_TRUE(at::equal(weight, weight_of(segment, number)));
      ++there;
    }
    EXPECT_GT(there, 0);
    return there == 2;
  }
};

TEST(WeightShards, ComeOneSegmentAheadAndGo) {
  with_shared_ranks(2, [](const std::shared_ptr<Group>& group) {
    Weights w;
    WeightShards shards(group, w.segments);
    const auto has = [&] {
      return std::vector<bool>{w.has(0, group->rank()), w.has(1, group->rank()),
                               w.has(2, group->rank())};
    };
    EXPECT_THAT(has(), testing::ElementsAre(false, false, false));
    shards.fetch(0, /*backward=*/false);
    EXPECT_TRUE(w.has(0, group->rank()));
    shards.fetch(0, false);
    shards.release(0);
    EXPECT_TRUE(w.has(0, group->rank()));  // somebody reads it yet
    shards.release(0);
    EXPECT_FALSE(w.has(0, group->rank()));
    shards.fetch(1, false);  // was on its way
    shards.release(1);
    shards.fetch(2, false);
    shards.release(2);
    shards.fetch(2, /*backward=*/true);
    EXPECT_TRUE(w.has(2, group->rank()));
    shards.release(2);
    shards.settle();  // 1 was on its way, and nobody came for it
    EXPECT_THAT(has(), testing::ElementsAre(false, false, false));
    shards.gather();
    EXPECT_THAT(has(), testing::ElementsAre(true, true, true));
    shards.fetch(1, false);
    shards.release(1);
    shards.gather();
    shards.scatter();
    EXPECT_THAT(has(), testing::ElementsAre(true, true, true));
    shards.scatter();
    EXPECT_THAT(has(), testing::ElementsAre(false, false, false));
  });
}

TEST(WeightShards, NeedAStorageOfTheirOwn) {
  const std::shared_ptr<Group> group = planned_group(0, 2);
  const at::Tensor both = at::zeros({4, 3});
  EXPECT_THROW(WeightShards(group, {{{both.narrow(0, 0, 2), 0}}}), InputError);
  EXPECT_THROW(WeightShards(group, {{{both.t(), 0}}}), InputError);
}

TEST(WeightShards, AreWhatOwnersUpdate) {
  Toy alone({});
  Optimizer one(alone.pointers(), {});
  alone.accumulate(0);
  one.step(0.1);
  with_shared_ranks(2, [&](const std::shared_ptr<Group>& group) {
    Toy toy({});
    Optimizer optimizer(toy.pointers(), {.group = group, .zero = 3});
    Parameter &a = toy.parameters[0], &b = toy.parameters[1], &g = toy.parameters[2],
              &v = toy.parameters[3];
    // One that two segments read stays where it is, as vectors do.
    optimizer.shard_weights({{&a, &g, &v}, {&b, &v}});
    EXPECT_EQ(a.places.size() + b.places.size(), 2u);
    EXPECT_EQ(g.places.size() + v.places.size(), 0u);
    EXPECT_EQ(b.places[0].group, 1);
    optimizer.gather_weights();
    EXPECT_THAT([&] { optimizer.begin_backward(0.1); },
                testing::ThrowsMessage<InputError>(testing::HasSubstr("scatter_weights()")));
    toy.accumulate(0, group->rank());  // which reads weights, not as a segment does
    optimizer.scatter_weights();
    optimizer.sum_over_ranks();
    optimizer.step(0.1);
    optimizer.gather_weights();
    for (size_t i = 0; i < toy.parameters.size(); ++i) {
      EXPECT_TRUE(at::equal(toy.parameters[i].weight, alone.parameters[i].weight)) << i;
    }
    optimizer.scatter_weights();
    for (const Parameter* p : {&a, &b}) {
      const int owner = optimizer.states()[p == &a ? 0 : 1].owner;
      EXPECT_EQ(p->weight.storage().nbytes() > 0, owner == group->rank());
    }
  });
}

}  // namespace
}  // namespace compact
