// SPDX-License-Identifier: Apache-2.0
// Graphs whose model is changed, or gone, before their backward pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <new>

#include "compact/base/check.h"
#include "compact/ops/functions/loss.h"
#include "compact/ops/stages/map_stages.h"
#include "tests/ops/block.h"

namespace compact {
namespace {

const Dropped kSomeLive[] = {Dropped(0), Dropped(0b11010001), Dropped(0b11111111),
                             Dropped(0b01010101)};

// An object whose memory is spoilt once it is gone, so that whoever still reads it shows.
template <class T>
class Spoilt {
 public:
  template <class... Args>
  explicit Spoilt(Args&&... args) : object_(new (memory_) T(std::forward<Args>(args)...)) {}
  ~Spoilt() { end(); }
  Spoilt(const Spoilt&) = delete;
  T& operator*() { return *object_; }
  T* operator->() { return object_; }
  void end() {
    if (!object_) return;
    object_->~T();
    object_ = nullptr;
    std::memset(memory_, 0xa5, sizeof memory_);
  }

 private:
  alignas(T) std::byte memory_[sizeof(T)];
  T* object_;
};

void spoil(std::unique_ptr<BoundSegment> segment) {
  BoundSegment* const s = segment.release();
  s->~BoundSegment();
  std::memset(static_cast<void*>(s), 0xa5, sizeof *s);
  operator delete(s);
}

TEST(Lifetime, AReplacedWeightChangesNoGradient) {
  for (const Dropped dropped : kSomeLive) {
    Block block(at::kFloat);
    const std::vector<at::Tensor> want = run_block(block, *block.segment(dropped));
    const auto segment = block.segment(dropped);
    for (size_t replaced = 0; replaced < block.parameters().size(); ++replaced) {
      Parameter& p = *block.parameters()[replaced];
      const at::Tensor x = block.input(), y = (*segment)(x), old = p.weight;
      p.weight = noise(old.sizes(), "another", at::kFloat).requires_grad_(true);
      y.backward(block.output_gradient());
      EXPECT_FALSE(p.weight.grad().defined()) << p.name;
      p.weight = old;
      std::vector<at::Tensor> got = block.take_gradients();
      got.push_back(y.detach());
      got.push_back(x.grad());
      EXPECT_TRUE(same_bits(got, want)) << dropped << " " << p.name;
    }
  }
}

TEST(Lifetime, AGraphOutlivesItsModel) {
  for (const Dropped dropped : kSomeLive) {
    Spoilt<Block> block(at::kFloat);
    const std::vector<at::Tensor> want = run_block(*block, *block->segment(dropped));
    std::unique_ptr<BoundSegment> segment = block->segment(dropped);
    const at::Tensor x = block->input(), y = (*segment)(x), gy = block->output_gradient();
    std::vector<at::Tensor> leaves;
    for (Parameter* p : block->parameters()) leaves.push_back(p->weight);
    spoil(std::move(segment));
    block.end();
    y.backward(gy);
    std::vector<at::Tensor> got;
    for (const at::Tensor& leaf : leaves) got.push_back(leaf.grad());
    got.push_back(y.detach());
    got.push_back(x.grad());
    EXPECT_TRUE(same_bits(got, want)) << dropped;
  }
}

TEST(Lifetime, ASketchOutlivesItsModel) {
  const auto project = [](Block& block) {
    const Spec spec = Spec::parse("project:rank=0.25,type=srht");
    block.down.carrier =
        make_carrier(spec, "down", block.down.weight.detach(), {Block::kWidth}, /*key=*/7);
    block.down.weight.requires_grad_(false);
  };
  for (const bool sketch : {false, true}) {
    const std::vector<std::string> sketched =
        sketch ? std::vector<std::string>{"mlp.product"} : std::vector<std::string>{};
    Spoilt<Block> block(at::kFloat);
    project(*block);
    const std::vector<at::Tensor> want = run_block(*block, *block->segment({}, sketched));
    std::unique_ptr<BoundSegment> segment = block->segment({}, sketched);
    const at::Tensor x = block->input(), y = (*segment)(x), gy = block->output_gradient();
    const at::Tensor carrier = block->down.leaf();
    spoil(std::move(segment));
    block.end();
    y.backward(gy);
    EXPECT_TRUE(same_bits(carrier.grad(), want[5])) << sketch;
    EXPECT_TRUE(same_bits(x.grad(), want.back())) << sketch;
  }
}

TEST(Lifetime, ProjectionsDrawnAnewAreRefused) {
  Block block(at::kFloat);
  const at::Tensor weight = block.down.weight.detach();
  block.down.carrier =
      make_carrier(Spec::parse("project:rank=0.25"), "down", weight, {Block::kWidth}, /*key=*/7);
  const auto segment = block.segment({}, {"mlp.product"});
  const at::Tensor y = (*segment)(block.input());
  block.down.carrier->redraw(1, weight.options());
  try {
    y.backward(block.output_gradient());
    ADD_FAILURE();
  } catch (const c10::Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("drawn again"));
  }
}

// Whether statistics of the first step are made again depends on what its input comes back from.
TEST(Lifetime, ACodecGivenLaterIsForPassesToCome) {
  Block block(at::kFloat);
  const Treatment codes = Treatment::parse("quantize:bits=4,group=32"),
                  offload = Treatment::parse("offload");
  BoundSegment segment("block", Slot{"in", Block::kWidth, codes});
  segment.add(rms_norm_stage(1e-5), {&block.attn_norm},
              Slot{"norm", Block::kWidth, Treatment::parse("recompute")});
  segment.add(linear_stage(), {&block.out});
  segment.finish();
  const auto run = [&](bool change) {
    segment.set_codec("in", codes);
    segment.pass.noise = 1;
    const at::Tensor x = block.input(), y = segment(x);
    if (change) segment.set_codec("in", offload);
    y.backward(block.output_gradient());
    std::vector<at::Tensor> all = block.take_gradients();
    all.push_back(x.grad());
    return all;
  };
  const std::vector<at::Tensor> want = run(false);
  EXPECT_TRUE(same_bits(run(true), want));
}

struct Maps {
  Parameter weight{.name = "conv", .weight = noise({6, 4, 3, 3}, "conv", at::kFloat, 0.3)};
  Parameter scale{.name = "scale", .weight = noise({6}, "scale", at::kFloat)};
  Parameter shift{.name = "shift", .weight = noise({6}, "shift", at::kFloat)};
  BatchNormStatistics statistics{noise({6}, "mean", at::kFloat),
                                 noise({6}, "variance", at::kFloat).square()};

  Maps() {
    for (Parameter* p : {&weight, &scale, &shift}) p->weight.requires_grad_(true);
  }
  // `dropped`: the normed map is rebuilt, and with it what the convolution makes. `pooled`: the
  // input is held as means over windows of one pixel.
  std::unique_ptr<BoundSegment> segment(bool dropped, bool pooled) {
    const Treatment how = Treatment::parse(dropped ? "recompute" : "keep");
    const Slot input{.name = "input",
                     .treatment = Treatment::parse(pooled ? "pool:size=1" : "keep")};
    auto s = std::make_unique<BoundSegment>("maps", input);
    s->add(conv_stage(3, 1, 1), {&weight}, Slot{"conv", 0, how});
    s->add(batch_norm_stage(statistics), {&scale, &shift});
    s->add(relu_stage(/*mask=*/false), {}, Slot{"relu", 0, how});
    s->add(average_stage());
    s->finish();
    return s;
  }
};

TEST(Lifetime, MapsOutliveTheirModelAndItsStatistics) {
  for (const bool training : {false, true}) {
    for (const auto& [dropped, pooled] :
         {std::pair(false, false), std::pair(true, false), std::pair(false, true)}) {
      std::vector<std::vector<at::Tensor>> got;
      for (const char* change : {"none", "statistics", "gone"}) {
        Spoilt<Maps> maps;
        std::unique_ptr<BoundSegment> segment = maps->segment(dropped, pooled);
        segment->pass.training = training;
        const at::Tensor x = noise({3, 4, 5, 5}, "x", at::kFloat).requires_grad_(true);
        const at::Tensor y = (*segment)(x), gy = noise({3, 6}, "gy", at::kFloat);
        const std::vector<at::Tensor> leaves = {maps->weight.weight, maps->scale.weight,
                                                maps->shift.weight};
        if (change == std::string("statistics")) {
          maps->statistics.mean.add_(1);
          maps->statistics.variance.mul_(3);
        } else if (change == std::string("gone")) {
          spoil(std::move(segment));
          maps.end();
        }
        y.backward(gy);
        got.push_back({x.grad()});
        for (const at::Tensor& leaf : leaves) got.back().push_back(leaf.grad());
      }
      EXPECT_GT(got[0][0].abs().max().item<float>(), 0);
      EXPECT_TRUE(same_bits(got[1], got[0])) << training << dropped << pooled;
      EXPECT_TRUE(same_bits(got[2], got[0])) << training << dropped << pooled;
    }
  }
}

TEST(Lifetime, TheLossReadsTheHeadOfTheForwardPass) {
  const at::Tensor weight = noise({19, 8}, "head", at::kFloat);
  const at::Tensor targets = at::arange(11, at::kLong);
  for (const int64_t chunk : {0, 4, 64}) {
    std::vector<std::vector<at::Tensor>> got;
    for (const char* change : {"none", "replaced", "gone"}) {
      Spoilt<Parameter> head;
      const at::Tensor leaf = weight.clone().requires_grad_(true);
      head->weight = leaf;
      const at::Tensor hidden = noise({11, 8}, "hidden", at::kFloat).requires_grad_(true);
      const at::Tensor loss = linear_cross_entropy(hidden, head->weight, targets, 0.5, {chunk});
      if (change == std::string("replaced")) head->weight = at::ones_like(weight);
      if (change == std::string("gone")) head.end();
      loss.backward();
      got.push_back({hidden.grad(), leaf.grad()});
    }
    EXPECT_TRUE(same_bits(got[1], got[0])) << chunk;
    EXPECT_TRUE(same_bits(got[2], got[0])) << chunk;
  }
}

}  // namespace
}  // namespace compact
