// SPDX-License-Identifier: Apache-2.0
// Tensors offloaded from a GPU: when they come back, and how long their memory lives in plans.
// Streams are not seen here.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "compact/codecs/codec.h"
#include "compact/codecs/meta_device.h"
#include "compact/ops/functions/fork.h"
#include "compact/ops/stages/map_stages.h"
#include "compact/ops/stages/stages.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kRows = 64, kWidth = 32, kOne = kRows * kWidth * 4;  // bytes of a tensor

// A chain of segments, each of a product and a GELU, which keeps its input and what GELU reads.
class OffloadPlans : public testing::Test {
 protected:
  void SetUp() override {
    prepare_meta(c10::kCUDA);
    before_ = live_bytes(at::kMeta);
    weight_.name = "w";
    weight_.weight = at::empty({kWidth, kWidth}, at::device(at::kMeta)).requires_grad_();
    for (int i = 0; i < 3; ++i) chain_.push_back(segment(std::to_string(i), "offload"));
  }
  void TearDown() override {
    chain_.clear();
    weight_ = {};
    EXPECT_EQ(live_bytes(at::kMeta), before_);
    set_meta_device(c10::kCPU);
  }

  static Segment segment(const std::string& name, const std::string& treatment,
                         std::shared_ptr<const Stage> last = gelu_stage(false)) {
    const auto slot = [&](const char* rest) {
      return Slot{name + rest, kWidth, Treatment::parse(treatment)};
    };
    Segment s(name, slot(".in"));
    s.add(linear_stage(), slot(".gelu"));
    s.add(std::move(last));
    s.finish();
    return s;
  }
  at::Tensor run(const Segment& s, at::Tensor x) const {
    const Parameter* const read[] = {&weight_};
    return s(std::move(x), weights_of(read));
  }
  at::Tensor forward() const {
    at::Tensor x = input();
    for (const Segment& s : chain_) x = run(s, std::move(x));
    return x;
  }
  static at::Tensor input() {
    return at::empty({kRows, kWidth}, at::device(at::kMeta)).requires_grad_();
  }
  static at::Tensor like_output() { return at::empty({kRows, kWidth}, at::device(at::kMeta)); }

  // In which segment's backward pass tensors came back.
  template <class F>
  static std::vector<std::string> back(const F& backward) {
    OperationRecorder recorder;
    start_trace(at::kMeta);
    backward();
    stop_trace();
    std::vector<std::string> all;
    for (const Operation& o : recorder.take()) {
      if (o.host) all.push_back(o.moment.part);
    }
    return all;
  }

  Parameter weight_;
  std::vector<Segment> chain_;
  int64_t before_ = 0;
};

// Two of each, the first of them when there is nothing before.
TEST_F(OffloadPlans, TensorsComeBackASegmentEarly) {
  const at::Tensor y = forward(), g = like_output();
  EXPECT_THAT(back([&] { y.backward(g); }), ElementsAre("2", "2", "2", "2", "1", "1"));
}

TEST_F(OffloadPlans, ThroughForksAndViews) {
  at::Tensor x = run(chain_[0], input());
  auto [a, b] = fork(x.view({kRows, kWidth}));
  x = at::Tensor();
  const at::Tensor g = like_output();
  const at::Tensor y = run(chain_[1], a) + run(chain_[2], b);
  a = b = at::Tensor();
  // Two segments read what the first made; the one that runs first begins its restore for both.
  EXPECT_THAT(back([&] { y.backward(g); }), ElementsAre("1", "1", "1", "1", "2", "2"));
}

TEST_F(OffloadPlans, ChainsOfCodecsDoSo) {
  chain_.clear();
  for (int i = 0; i < 2; ++i) {
    chain_.push_back(segment(std::to_string(i), "quantize:bits=4+offload"));
  }
  const at::Tensor y = forward(), g = like_output();
  const auto parts = back([&] { y.backward(g); });
  ASSERT_EQ(parts.size() % 4, 0u);
  EXPECT_GE(parts.size(), 8u);  // codes and scales of each
  for (const std::string& part : parts) EXPECT_EQ(part, "1");
}

TEST_F(OffloadPlans, EveryPassOverARetainedGraphTakesItsOwn) {
  at::Tensor y = forward();
  const at::Tensor g = like_output();
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(back([&] { torch::autograd::backward({y}, {g}, /*retain_graph=*/true); }),
                ElementsAre("2", "2", "2", "2", "1", "1"));
    weight_.weight.mutable_grad() = at::Tensor();
  }
  EXPECT_THAT(back([&] { y.backward(g); }), ElementsAre("2", "2", "2", "2", "1", "1"));
  y = at::Tensor();
}

// Where gradients need the last segment alone, nothing comes back before it.
TEST_F(OffloadPlans, NothingComesBackForWhatDoesNotRun) {
  const at::Tensor between = run(chain_[0], input()), y = run(chain_[1], between),
                   g = like_output();
  EXPECT_THAT(back([&] { torch::autograd::grad({y}, {between}, {g}, true); }), ElementsAre("1"));
  const at::Tensor frozen = input().detach();
  const at::Tensor z = run(chain_[1], run(chain_[0], frozen));
  EXPECT_THAT(back([&] { z.backward(g); }), ElementsAre("1", "1", "1", "1"));
}

// A stage whose backward pass fails so many times.
struct Failing final : Stage {
  mutable int failures = 0;
  Needs needs() const override { return {.input = true}; }
  at::Tensor forward(Forward& f) const override { return f.input * 2; }
  at::Tensor backward(Backward& b) const override {
    TORCH_CHECK(failures-- <= 0, "as asked");
    return b.gy * 2;
  }
};

// A tensor that came back for a pass that ended early is not taken by another pass, and is freed.
TEST_F(OffloadPlans, PassesThatFailLeaveNothingToTheNext) {
  const auto failing = std::make_shared<Failing>();
  chain_.push_back(segment("3", "offload", failing));
  at::Tensor y = forward();
  const at::Tensor g = like_output();
  const auto pass = [&](bool retain) { torch::autograd::backward({y}, {g}, retain); };
  failing->failures = 1;
  EXPECT_THROW(pass(true), c10::Error);
  const auto parts = back([&] { pass(true); });
  EXPECT_THAT(parts, ElementsAre("3", "3", "3", "3", "2", "2", "1", "1"));
  weight_.weight.mutable_grad() = at::Tensor();
  const int64_t whole = live_bytes(at::kMeta);
  failing->failures = 1;
  EXPECT_THROW(pass(true), c10::Error);
  EXPECT_EQ(live_bytes(at::kMeta), whole + 2 * kOne);  // of segment 2
  y = at::Tensor();                                    // TearDown sees that all is gone
}

// Memory leaves while the next segment runs; that of the last one when its backward pass begins, or
// with the graph. The input of all is a leaf, which the graph holds.
TEST_F(OffloadPlans, MemoryLeavesBesideTheNextSegment) {
  const int64_t fixed = live_bytes(at::kMeta);
  at::Tensor y = run(chain_[0], input());
  EXPECT_EQ(live_bytes(at::kMeta), fixed + (1 + 1 + 1) * kOne);  // input, what leaves, y
  for (int i = 1; i < 3; ++i) {
    y = run(chain_[i], std::move(y));
    EXPECT_EQ(live_bytes(at::kMeta), fixed + (1 + 2 + 1) * kOne);
  }
  const at::Tensor other = run(chain_[0], input());
  EXPECT_EQ(live_bytes(at::kMeta), fixed + (1 + 1 + 1 + 1 + 1) * kOne);
}

// A tensor that others can still write to has left the GPU when the segment goes on.
TEST_F(OffloadPlans, WhatOthersHoldIsWaitedFor) {
  const at::Tensor x = like_output();
  const int64_t fixed = live_bytes(at::kMeta);
  const Encoded seen = make_codec("offload")->encode(x, 1);
  const at::Tensor view = x.view({kWidth, kRows});
  EXPECT_EQ(live_bytes(at::kMeta), fixed);
  Encoded own = make_codec("offload")->encode(like_output(), 1);
  EXPECT_EQ(live_bytes(at::kMeta), fixed + kOne);
  own.settle();
  EXPECT_EQ(live_bytes(at::kMeta), fixed);
  own.settle();
  Encoded coming = own.fetched();
  EXPECT_EQ(live_bytes(at::kMeta), fixed + kOne);
  const at::Tensor back = coming.restore();
  coming = {};
  EXPECT_EQ(live_bytes(at::kMeta), fixed + kOne);
  EXPECT_EQ(back.use_count(), 1u);
  EXPECT_EQ(back.storage().use_count(), 1u);
}

TEST_F(OffloadPlans, ScopesBringNothingBackEarly) {
  at::Tensor y;
  const int64_t fixed = live_bytes(at::kMeta);
  {
    SavedTensorOptions options;
    options.least_elements = 1;
    const SavedTensorScope scope(Policy::parse("slot * = offload\n", "test"), options);
    y = (input() * 2).exp().sin();
    EXPECT_EQ(live_bytes(at::kMeta), fixed + 2 * kOne);  // the leaf and y
  }
  const at::Tensor g = like_output();
  EXPECT_THAT(back([&] { y.backward(g); }), ElementsAre("", ""));
}

// On a CPU it is a copy that nothing is begun of.
TEST_F(OffloadPlans, OnACpuNothingIsBegun) {
  set_meta_device(c10::kCPU);
  for (const at::Tensor& x : {like_output(), at::ones({2, 3})}) {
    const Encoded e = make_codec("quantize:bits=4+offload")->encode(x, 1);
    EXPECT_TRUE(!e.fetch && !e.settle);
  }
  const at::Tensor y = forward(), g = like_output();
  EXPECT_THAT(back([&] { y.backward(g); }), IsEmpty());
  set_meta_device(c10::kCUDA);
}

// A step holds at most the offloaded tensors of one segment more than where each is copied back
// when it is read; here that is gate_up, 4 * 128 tokens of 2 * 2,048 elements in bf16.
TEST_F(OffloadPlans, AStepHoldsOneSegmentMore) {
  LlamaConfig shape = small_shape(4);
  shape.block.intermediate = 2048;
  const auto peak = [&](const char* policy, std::vector<Operation>* operations) {
    PlanRequest r = small_request(policy, at::kBFloat16, {4, 128}, shape);
    r.device = c10::kCUDA;
    const StepPlan plan = plan_step(step_request(r), operations);
    return plan.memory;
  };
  std::vector<Operation> operations;
  const StepMemory kept = peak("slot layers.*.mlp.gate_up = keep\n", nullptr),
                   moved = peak("slot layers.*.mlp.gate_up = offload\n", &operations);
  std::vector<std::string> parts;
  for (const Operation& o : operations) {
    if (o.host && o.moment.phase == Phase::kBackwardOf) parts.push_back(o.moment.part);
  }
  EXPECT_THAT(parts, ElementsAre("final", "layers.3", "layers.2", "layers.1"));
  const int64_t one = int64_t{4} << 20;
  const auto at = [](const StepMemory& m, Phase phase, const char* part) {
    return m.at({phase, part});
  };
  // Two of four are held, a segment's own and the next one's; in the last segment there is no next
  // one.
  EXPECT_EQ(at(moved, Phase::kBackwardOf, "layers.3"),
            at(kept, Phase::kBackwardOf, "layers.3") - 2 * one);
  EXPECT_EQ(at(moved, Phase::kBackwardOf, "layers.0"), at(kept, Phase::kBackwardOf, "layers.0"));
  EXPECT_LE(moved.peak, kept.peak - one);
}

}  // namespace
}  // namespace compact
