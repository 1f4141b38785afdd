// SPDX-License-Identifier: Apache-2.0
// Projected gradients: from the input, from the recomputed input, from its sketch.
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"
#include "compact/ops/memory/memory.h"
#include "tests/ops/block.h"

namespace compact {
namespace {

constexpr int64_t kRank = 6;  // a quarter of kWidth
constexpr int64_t kMlpRank = 9;
const std::vector<std::string> kSketched = {"attn.norm", "mlp.norm", "mlp.product"};

void project(Block& block, const std::string& type, bool share) {
  uint64_t key = 1;
  const int64_t kv = Block::kKvHeads * Block::kDim;
  const auto carry = [&](Parameter& p, std::vector<int64_t> parts) {
    const Spec spec = Spec::parse(cat("project:rank=0.25,type=", type, ",share=", share));
    p.carrier = make_carrier(spec, p.name, p.weight.detach(), parts, ++key);
    p.weight.requires_grad_(false);
  };
  carry(block.qkv, {Block::kWidth, kv, kv});
  carry(block.gate_up, {Block::kMlp, Block::kMlp});
  carry(block.down, {Block::kWidth});
}

struct SketchCase {
  std::string type;
  bool share;
};
void PrintTo(const SketchCase& c, std::ostream* out) {
  *out << c.type << (c.share ? " shared" : " own");
}

class Sketch : public testing::TestWithParam<SketchCase> {};

TEST_P(Sketch, GradientOfTheCarrierIsTheWeightsGradientTimesP) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Block plain(type), projected(type);
    project(projected, GetParam().type, GetParam().share);
    const std::vector<at::Tensor> full = run_block(plain, *plain.segment({}));
    const std::vector<at::Tensor> got = run_block(projected, *projected.segment({}));
    for (size_t i = 0; i < got.size(); ++i) {
      const Parameter* p = i < 6 ? projected.parameters()[i] : nullptr;
      if (!p || !p->carrier) {  // everything else does not change
        EXPECT_TRUE(same_bits(got[i], full[i])) << i;
        continue;
      }
      ASSERT_EQ(got[i].sizes(), at::IntArrayRef({p->weight.size(0), p->carrier->rank}));
      int64_t row = 0;
      for (size_t part = 0; part < p->carrier->rows.size(); ++part) {
        const int64_t rows = p->carrier->rows[part];
        const at::Tensor want = full[i]
                                    .narrow(0, row, rows)
                                    .to(at::kDouble)
                                    .mm(p->carrier->projections[part]->matrix().to(at::kDouble));
        EXPECT_LT(relative_error(got[i].narrow(0, row, rows), want),
                  type == at::kFloat ? 3e-6 : 2e-2)
            << p->name << " " << part;
        row += rows;
      }
      EXPECT_EQ(row, p->weight.size(0));
    }
  }
}

TEST_P(Sketch, KeptRecomputedAndSketchedInputsGiveTheSameBits) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Block block(type);
    project(block, GetParam().type, GetParam().share);
    const std::vector<at::Tensor> want = run_block(block, *block.segment({}));
    EXPECT_TRUE(same_bits(run_block(block, *block.segment({}, kSketched)), want));
    EXPECT_TRUE(same_bits(run_block(block, *block.segment(Dropped(0b11010001))), want));
    // a sketch beside recomputed tensors that are rebuilt through the linear
    EXPECT_TRUE(same_bits(run_block(block, *block.segment(Dropped(0b01101110), kSketched)), want));
  }
}

TEST_P(Sketch, HoldsTheProjectionInsteadOfTheInput) {
  install_counting_allocator();
  Block block(at::kFloat);
  project(block, GetParam().type, GetParam().share);
  const auto segment = block.segment({}, kSketched);
  const at::Tensor x = block.input();
  (*segment)(x);  // whatever is made once
  const int64_t before = live_bytes(at::kCPU);
  const at::Tensor y = (*segment)(x);
  const int64_t held = live_bytes(at::kCPU) - before - static_cast<int64_t>(y.nbytes());
  const int64_t qkv = GetParam().share ? 1 : 3, gate_up = GetParam().share ? 1 : 2;
  const int64_t sketches = (qkv + gate_up) * kRank + kMlpRank;
  const int64_t kept =
      Block::kQkv + 2 * Block::kWidth + 3 * Block::kMlp;  // qkv, out, input; gate_up, silu
  const int64_t extras = 2 + Block::kHeads;
  EXPECT_EQ(held, Block::kTokens * 4 * (sketches + kept + extras));
  EXPECT_EQ(segment->report.saved_bytes, held + static_cast<int64_t>(x.nbytes()));
  int64_t sketched = 0, others = 0;
  for (const SlotBytes& b : segment->report.slots) {
    (b.treatment == "sketch" ? sketched : others) += b.stored;
  }
  EXPECT_EQ(sketched, Block::kTokens * 4 * sketches);
  EXPECT_EQ(sketched + others, segment->report.saved_bytes);
  y.backward(block.output_gradient());
  EXPECT_EQ(*segment->report.rebuilt, 0);
}

TEST_P(Sketch, SecondBackwardWithRetainedGraph) {
  Block block(at::kFloat);
  project(block, GetParam().type, GetParam().share);
  const auto segment = block.segment({}, kSketched);
  std::vector<at::Tensor> once = run_block(block, *segment);
  const at::Tensor y = (*segment)(block.input());
  y.backward(block.output_gradient(), true);
  y.backward(block.output_gradient());
  const std::vector<at::Tensor> twice = block.take_gradients();
  for (size_t i = 0; i < twice.size(); ++i) EXPECT_TRUE(same_bits(twice[i], once[i] * 2)) << i;
}

std::vector<SketchCase> cases() {
  std::vector<SketchCase> all;
  for (const ProjectionInfo* p : projections()) {
    all.push_back({p->name, true});
    all.push_back({p->name, false});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Types, Sketch, testing::ValuesIn(cases()), [](const auto& info) {
  return info.param.type + (info.param.share ? "_shared" : "_own");
});

TEST(SketchTreatment, OnlyWhereEveryReaderIsAProjectedLinear) {
  Block block(at::kFloat);
  project(block, "srht", true);
  EXPECT_NO_THROW(block.segment({}, kSketched));
  for (const char* name : {"attn.qkv", "attn.out", "mlp.input", "mlp.gate_up", "mlp.silu"}) {
    EXPECT_THROW(block.segment({}, {name}), InputError) << name;
  }
}

// A weight that gets its whole gradient again has no use for a sketch of its input.
TEST(SketchTreatment, AProjectionThatIsTakenAwayIsMissed) {
  Block block(at::kFloat);
  project(block, "srht", true);
  const auto segment = block.segment({}, kSketched);
  block.gate_up.carrier.reset();
  block.gate_up.weight.requires_grad_(true);
  EXPECT_THAT([&] { (*segment)(block.input()); },
              testing::ThrowsMessage<InputError>(testing::HasSubstr("slot `mlp.norm` = sketch")));
}

TEST(SketchTreatment, WithoutGradientsNothingIsProjected) {
  install_counting_allocator();
  Block block(at::kFloat);
  project(block, "srht", true);
  const auto segment = block.segment({}, kSketched);
  const at::Tensor x = block.input();
  const at::NoGradGuard no_grad;
  const int64_t before = live_bytes(at::kCPU);
  const at::Tensor y = (*segment)(x);
  EXPECT_EQ(live_bytes(at::kCPU) - before, static_cast<int64_t>(y.nbytes()));
}

}  // namespace
}  // namespace compact
