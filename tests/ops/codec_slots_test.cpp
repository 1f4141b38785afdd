// SPDX-License-Identifier: Apache-2.0
// Slots of a block that codecs hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "compact/base/check.h"
#include "compact/ops/memory/memory.h"
#include "compact/ops/policy/policy.h"
#include "compact/ops/stages/map_stages.h"
#include "tests/ops/block.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

// The block of block.h, with slots as a policy says.
std::unique_ptr<BoundSegment> treated(Block& b, const std::string& text) {
  const Policy policy = Policy::parse(text, "test");
  const auto slot = [&](const char* name, int64_t width) {
    return slot_of(policy, name, Role::kNone, width);
  };
  auto s = std::make_unique<BoundSegment>("block", slot("attn.input", Block::kWidth));
  s->add(rms_norm_stage(1e-5), {&b.attn_norm}, slot("attn.norm", Block::kWidth));
  s->add(linear_stage(), {&b.qkv});
  s->add(rope_stage(b.rope, Block::kHeads + Block::kKvHeads, Block::kDim), {},
         slot("attn.qkv", Block::kQkv));
  s->add(attention_stage(Block::kHeads, Block::kKvHeads, Block::kDim), {},
         slot("attn.out", Block::kWidth));
  s->add(linear_stage(), {&b.out});
  const int middle = s->add_residual(0, slot("mlp.input", Block::kWidth));
  s->add(rms_norm_stage(1e-5), {&b.mlp_norm}, slot("mlp.norm", Block::kWidth));
  s->add(linear_stage(), {&b.gate_up}, slot("mlp.gate_up", 2 * Block::kMlp));
  s->add(swiglu_stage(Block::kMlp), {}, slot("mlp.product", Block::kMlp),
         slot("mlp.silu", Block::kMlp));
  s->add(linear_stage(), {&b.down});
  s->add_residual(middle);
  s->finish();
  return s;
}

class CodecSlots : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { install_counting_allocator(); }
};

TEST_P(CodecSlots, HoldTheBytesTheySay) {
  Block block(GetParam());
  for (const char* text : {"slot * = quantize:bits=4,group=32\n",
                           "slot * = quantize:bits=2\nslot mlp.silu = recompute\n",
                           "slot * = quantize:bits=8,along=last\nslot attn.input = keep\n",
                           "slot * = offload\n", "slot * = quantize:bits=1+offload\n"}) {
    const auto segment = treated(block, text);
    // The input belongs to its maker, who lets go of it here.
    at::Tensor x = block.input().mul(1);
    const int64_t before = live_bytes(at::kCPU) - static_cast<int64_t>(x.nbytes());
    at::Tensor y = (*segment)(x);
    x = at::Tensor();
    const int64_t held = live_bytes(at::kCPU) - before - static_cast<int64_t>(y.nbytes());
    EXPECT_EQ(segment->report.saved_bytes, held) << text;
    int64_t rows = 0;
    for (const SlotBytes& b : segment->report.slots) rows += b.stored;
    EXPECT_EQ(rows, held) << text;
    torch::autograd::backward({y}, {block.output_gradient()});
    block.take_gradients();
  }
}

TEST_P(CodecSlots, LosslessOnesChangeNoBit) {
  Block block(GetParam());
  const auto want = run_block(block, *block.segment({}));
  EXPECT_TRUE(same_bits(run_block(block, *treated(block, "slot * = offload\n")), want));
}

TEST_P(CodecSlots, NoiseComesFromTheKey) {
  Block block(GetParam());
  const auto segment = treated(block, "slot * = quantize:bits=4,group=32\n");
  const auto run = [&](uint64_t key) {
    segment->pass.noise = key;
    return run_block(block, *segment);
  };
  const auto first = run(1);
  EXPECT_TRUE(same_bits(run(1), first));
  EXPECT_FALSE(same_bits(run(2), first));
}

TEST_P(CodecSlots, SecondBackwardGivesTheSame) {
  Block block(GetParam());
  const auto segment = treated(block, "slot * = quantize:bits=4,group=32\n");
  const at::Tensor x = block.input();
  const at::Tensor y = (*segment)(x);
  torch::autograd::backward({y}, {block.output_gradient()}, true);
  const auto first = block.take_gradients();
  torch::autograd::backward({y}, {block.output_gradient()});
  EXPECT_TRUE(same_bits(block.take_gradients(), first));
}

// The error of set_codec() for a slot and a codec; empty where it accepts it.
std::string refused_codec(Segment& segment, const char* slot, const char* treatment) {
  return error_of([&] { segment.set_codec(slot, Treatment::parse(treatment)); });
}

std::string treatment_of(const Segment& segment, const std::string& slot) {
  for (const Slot& s : segment.codec_slots()) {
    if (s.name == slot) return s.treatment.text();
  }
  return "none";
}

TEST(CodecSlotsLater, HoldWhatBackwardReads) {
  Block block(at::kFloat);
  const auto segment = treated(block, "slot * = offload\n");
  for (const char* slot : {"attn.input", "mlp.gate_up", "mlp.silu", "attn.out"}) {
    EXPECT_THAT(refused_codec(*segment, slot, "mask:of=sign"),
                testing::HasSubstr("reads values, not signs"));
    EXPECT_EQ(treatment_of(*segment, slot), "offload");
  }
  EXPECT_EQ(refused_codec(*segment, "mlp.gate_up", "quantize:bits=1"), "");
  EXPECT_EQ(treatment_of(*segment, "mlp.gate_up"), "quantize:bits=1");
  EXPECT_THAT(refused_codec(*segment, "mlp.down", "offload"), testing::HasSubstr("no codec holds"));
  EXPECT_THAT(refused_codec(*segment, "attn.out", "keep"), testing::HasSubstr("another codec"));
}

Slot moved(const char* name) {
  return {.name = name, .width = 4, .treatment = Treatment::parse("offload")};
}

// A ReLU that was made without a mask reads signs of what holds its output.
TEST(CodecSlotsLater, TellSignsWhereAReluReadsThem) {
  Parameter a{.name = "a", .weight = noise({4, 4}, "a", at::kFloat).requires_grad_(true)};
  Parameter b{.name = "b", .weight = noise({4, 4}, "b", at::kFloat).requires_grad_(true)};
  BoundSegment read("read", Slot{"in", 4}), signs("signs", Slot{"in", 4}),
      rebuilt("re", Slot{"in", 4});
  read.add(linear_stage(), {&a});
  read.add(relu_stage(), {}, moved("relu"));
  read.add(linear_stage(), {&b});
  signs.add(linear_stage(), {&a});
  signs.add(relu_stage(), {}, moved("relu"));
  rebuilt.add(linear_stage(), {&a}, moved("gelu"));
  rebuilt.add(gelu_stage(false));
  rebuilt.add(relu_stage(), {}, Slot{"relu", 4, Treatment::parse("recompute")});
  rebuilt.add(linear_stage(), {&b});
  for (BoundSegment* s : {&read, &signs, &rebuilt}) s->finish();

  EXPECT_EQ(refused_codec(read, "relu", "quantize:bits=4+offload"), "");
  EXPECT_EQ(treatment_of(read, "relu"), "quantize:bits=4,levels=positive+offload");
  for (const char* lossy : {"quantize:bits=1", "pool:size=2"}) {
    EXPECT_THAT(refused_codec(read, "relu", lossy), testing::HasSubstr("`relu`")) << lossy;
  }
  EXPECT_EQ(refused_codec(signs, "relu", "quantize:bits=1"), "");
  EXPECT_EQ(treatment_of(signs, "relu"), "mask:of=sign");
  EXPECT_THAT(refused_codec(rebuilt, "gelu", "quantize:bits=4"), testing::HasSubstr("`gelu`"));
  EXPECT_EQ(treatment_of(rebuilt, "gelu"), "offload");

  // The gradient of what is below 0 stays 0.
  const at::Tensor x = noise({64, 4}, "x", at::kFloat).requires_grad_(true);
  const at::Tensor y = read(x), off = at::linear(x, a.weight).le(0);
  y.backward(at::ones_like(y));
  const at::Tensor whole = at::linear(at::linear(x, a.weight).relu(), b.weight);
  const auto want = torch::autograd::grad({whole.sum()}, {x});
  EXPECT_TRUE(off.any().item<bool>());
  EXPECT_TRUE(at::allclose(x.grad(), want[0], 1e-5, 1e-6));
}

// A tensor of which only signs are held cannot be the source of one that another stage reads.
TEST(CodecSlotsLater, NothingIsRebuiltFromSigns) {
  Parameter a{.name = "a", .weight = noise({4, 4}, "a", at::kFloat).requires_grad_(true)};
  BoundSegment s("block", Slot{"in", 4});
  s.add(linear_stage(), {&a});
  s.add(relu_stage(), {}, moved("relu"));
  s.add(dropout_stage(0.5));
  s.add(linear_stage(), {&a});
  s.finish();
  EXPECT_THAT(refused_codec(s, "relu", "mask:of=sign"), testing::HasSubstr("reads values"));
}

// Only the input of the last product is rounded: the gradient of its weight is linear in it, and
// so unbiased; all others are exact. 2,000 keys, six standard errors.
TEST(CodecSlotsBias, WeightGradientsAreUnbiased) {
  Block block(at::kFloat);
  const auto exact = run_block(block, *block.segment({}));
  const auto segment = treated(block, "slot mlp.product = quantize:bits=2,group=32\n");
  constexpr int kKeys = 2000;
  std::vector<at::Tensor> sum(exact.size()), squares(exact.size());
  for (int k = 0; k < kKeys; ++k) {
    segment->pass.noise = static_cast<uint64_t>(k);
    const auto got = run_block(block, *segment);
    for (size_t i = 0; i < got.size(); ++i) {
      const at::Tensor g = got[i].to(at::kDouble);
      sum[i] = k ? sum[i] + g : g;
      squares[i] = k ? squares[i] + g.square() : g.square();
    }
  }
  int moved = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const at::Tensor mean = sum[i] / kKeys, off = (mean - exact[i].to(at::kDouble)).abs();
    const at::Tensor deviation = (squares[i] / kKeys - mean.square()).clamp_min(0).sqrt();
    moved += deviation.max().item<double>() > 1e-3;
    EXPECT_TRUE((off <= 6 * deviation / std::sqrt(kKeys) + 2e-4).all().item<bool>()) << i;
  }
  EXPECT_EQ(moved, 1) << "only the gradient of `down` may vary";
}

// Attention's result for exact queries and keys does not fit rounded ones: whatever its own slot
// holds, it is computed again from the rounded ones, so that probabilities sum to 1.
TEST(CodecSlotsBias, AttentionGoesWithItsInputAsItComesBack) {
  Block block(at::kFloat);
  const Tensors exact = run_block(block, *block.segment({}));
  const auto gradients = [&](const std::string& out, uint64_t key) {
    const auto segment =
        treated(block, "slot attn.qkv = quantize:bits=2,group=32\nslot attn.out = " + out + "\n");
    segment->pass.noise = key;
    return run_block(block, *segment);
  };
  for (uint64_t key = 0; key < 20; ++key) {
    const Tensors rebuilt = gradients("recompute", key);
    EXPECT_FALSE(at::equal(rebuilt[1], exact[1]));
    for (const char* out : {"keep", "quantize:bits=4,group=32"}) {
      const Tensors other = gradients(out, key);
      for (const size_t i : {0, 1}) EXPECT_TRUE(at::equal(other[i], rebuilt[i])) << out << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CodecSlots, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace compact
