// SPDX-License-Identifier: Apache-2.0
// Frozen weights that are held in codes and made whole for as long as something reads them.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>

#include "tests/parallel/threads.h"
#include "tests/plan/two_steps.h"

namespace compact {
namespace {

class CodedWeights final : public WeightHome, public std::enable_shared_from_this<CodedWeights> {
 public:
  explicit CodedWeights(const char* codec) : codec_(make_codec(codec)) {}
  at::Tensor decoded(const Parameter& p) const { return encode(p).restore(); }
  void take(Parameter& p) {
    p.places.push_back({shared_from_this(), static_cast<int>(all_.size())});
    all_.push_back({p.weight.detach(), encode(p)});
    free_memory(p.weight);
  }
  void fetch(int number, bool) override {
    One& one = all_.at(static_cast<size_t>(number));
    if (one.readers++ > 0) return;
    allocate_memory(one.weight);
    one.weight.variable_data().copy_(
        one.coded.restore());  // no new version: the values are not new
  }
  void release(int number) override {
    One& one = all_.at(static_cast<size_t>(number));
    if (--one.readers == 0) free_memory(one.weight);
  }
  std::vector<at::Tensor> held(const at::Tensor& weight) const override {
    for (const One& one : all_) {
      if (one.weight.is_alias_of(weight)) return one.coded.parts;
    }
    return {};
  }

 private:
  struct One {
    at::Tensor weight;
    Encoded coded;
    int readers = 0;
  };
  Encoded encode(const Parameter& p) const { return codec_->encode(p.weight.detach(), 7); }
  CodecPtr codec_;
  std::vector<One> all_;
};

enum class How { kDense, kDecoded, kCoded };

// A step whose network has matrices of blocks frozen: as they are, as codes give them, in codes.
// The matrices that one segment reads are in two homes.
StepRequest frozen_request(const char* policy, at::ScalarType type, How how) {
  PlanRequest r = small_request(policy, type, {.batch = 2, .length = 24}, small_shape(3));
  r.policy.append(
      Policy::parse("grad layers.*.{attn,mlp}.{qkv,out,gate_up,down} = frozen", "test"));
  StepRequest step = step_request(r);
  if (how == How::kDense) return step;
  step.network = [make = step.network, how](at::Device device) {
    auto network = make(device);
    const at::NoGradGuard no_grad;
    const std::array homes = {std::make_shared<CodedWeights>("quantize:bits=4"),
                              std::make_shared<CodedWeights>("quantize:bits=8,group=128")};
    for (Parameter* p : network->parameters()) {
      if (p->trained) continue;
      CodedWeights& home = *homes[p->name.find(".mlp.") != p->name.npos];
      how == How::kCoded ? home.take(*p) : static_cast<void>(p->weight.copy_(home.decoded(*p)));
    }
    return network;
  };
  return step;
}

constexpr const char* kPolicies[] = {"off", "exact", "recompute", "compact"};

TEST(CodedWeights, TrainAsTheDecodedOnes) {
  for (const char* policy : kPolicies) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const TwoSteps want = two_steps(frozen_request(policy, type, How::kDecoded));
      expect_same(two_steps(frozen_request(policy, type, How::kCoded)), want, policy);
      const TwoSteps dense = two_steps(frozen_request(policy, type, How::kDense));
      EXPECT_FALSE(at::equal(dense.losses[1], want.losses[1]));
    }
  }
}

TEST(CodedWeights, AreCountedToTheByte) {
  install_counting_allocator();
  for (const char* policy : kPolicies) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const StepRequest r = frozen_request(policy, type, How::kCoded);
      const StepMemory plan = plan_step(r).memory, real = run_for_real(r),
                       dense = plan_step(frozen_request(policy, type, How::kDense)).memory;
      expect_equal_parts(plan, real, policy);
      EXPECT_TRUE(plan.peak == real.peak || type != at::kFloat) << policy;
      int64_t codes = 0, whole = 0;
      for (const auto network = r.network(at::kMeta); const Parameter* p : network->parameters()) {
        if (p->trained) continue;
        const char* const codec =
            p->name.find(".mlp.") != p->name.npos ? "quantize:bits=8,group=128" : "quantize:bits=4";
        codes += *make_codec(codec)->bytes(p->weight.size(0), p->weight.size(1), type);
        whole += static_cast<int64_t>(p->weight.nbytes());
      }
      EXPECT_EQ(plan.weights, dense.weights - whole + codes) << policy;
      EXPECT_EQ(plan.other, dense.other) << policy;
      EXPECT_LT(plan.peak, dense.peak) << policy;
    }
  }
}

// Ranks have codes of their own weights, and send them.
TEST(CodedWeights, AreDealtUnderZero3) {
  for (const char* policy : {"off", "compact"}) {
    const auto of = [&](How how) { return frozen_request(policy, at::kFloat, how); };
    std::array<TwoSteps, 2> want, got;
    with_shared_ranks(2, [&](const std::shared_ptr<Group>& group) {
      want[static_cast<size_t>(group->rank())] = two_steps(of(How::kDecoded), group);
    });
    with_shared_ranks(2, [&](const std::shared_ptr<Group>& group) {
      got[static_cast<size_t>(group->rank())] = two_steps(of(How::kCoded), group, 3);
    });
    for (const size_t rank : {0, 1}) expect_same(got[rank], want[rank], policy);
    int64_t all[2] = {}, sent[2] = {};
    for (const How how : {How::kDense, How::kCoded}) {
      const int64_t alone = plan_step(of(how)).memory.weights;
      for (const int rank : {0, 1}) {
        StepRequest r = of(how);
        r.optimizer.group = planned_group(rank, 2);
        r.optimizer.zero = 3;
        const StepPlan plan = plan_step(r);
        all[how == How::kCoded] += plan.memory.weights;
        sent[how == How::kCoded] += plan.sent;
      }
      EXPECT_LT(all[how == How::kCoded], 2 * alone);
    }
    EXPECT_LT(all[1], all[0]);
    EXPECT_LT(sent[1], sent[0]);
  }
}

// In another type: made, for each call again, of what the codes give.
class Cast final : public WeightHome {
 public:
  explicit Cast(const Weight& w) : source_(w.source.detach()), value_(w.value) {}
  void fetch(int, bool) override { value_.set_data(source_.to(value_.scalar_type())); }
  void release(int) override { value_.set_data(at::empty({0}, value_.options())); }

 private:
  at::Tensor source_, value_;
};

TEST(WeightHomes, FollowOneAnother) {
  Segment segment("one", Slot{.name = "one.input"});
  segment.add(linear_stage());
  segment.finish();
  const auto home = std::make_shared<CodedWeights>("quantize:bits=4");
  Parameter p{.name = "w", .weight = at::randn({12, 64})};
  const at::Tensor whole = home->decoded(p).to(at::kBFloat16);
  home->take(p);
  const auto y_of = [&](bool cast) {
    const at::Tensor x = at::arange(128).view({2, 64}).to(at::kBFloat16).requires_grad_(true);
    Weight w = cast ? Weight(p) : Weight(whole);
    if (cast) {
      w.value = at::empty({0}, at::kBFloat16);
      w.places.push_back({std::make_shared<Cast>(w), 0});
    }
    const at::Tensor y = segment(x, {w});
    y.backward(at::ones_like(y));
    return std::array{y, x.grad()};
  };
  const auto want = y_of(false), got = y_of(true);
  for (const size_t i : {0, 1}) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
  EXPECT_EQ(p.weight.storage().nbytes(), 0u);
}

struct Asked final : WeightHome {
  explicit Asked(bool works) : works(works) {}
  void fetch(int group, bool) override {
    if (!works) throw std::runtime_error("away");
    seen.push_back(group);
  }
  void release(int group) override { seen.push_back(-group); }
  bool works;
  std::vector<int> seen;
};

// Each group of each home once, the last one first let go of, also where another one fails.
TEST(WeightHomes, AreAskedForEveryGroup) {
  const auto one = std::make_shared<Asked>(true), other = std::make_shared<Asked>(true),
             broken = std::make_shared<Asked>(false);
  std::vector<Weight> weights(4, Weight(at::ones({2})));
  weights[0].places = {{one, 1}};
  weights[2].places = {{one, 1}, {other, 5}};
  weights[3].places = {{one, 2}};
  { const FetchedWeights fetched(weights, false); }
  EXPECT_EQ(one->seen, (std::vector<int>{1, 2, -2, -1}));
  EXPECT_EQ(other->seen, (std::vector<int>{5, -5}));
  weights[3].places.push_back({broken, 0});
  EXPECT_THROW(FetchedWeights(weights, true), std::runtime_error);
  EXPECT_EQ(other->seen, (std::vector<int>{5, -5, 5, -5}));
  EXPECT_EQ(one->seen.size(), 8);
}

}  // namespace
}  // namespace compact
