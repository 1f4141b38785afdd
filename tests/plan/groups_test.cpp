// SPDX-License-Identifier: Apache-2.0
// Which segments of a network are alike, and what is known of them.
#include "compact/plan/groups.h"

#include <gtest/gtest.h>

#include "compact/models/resnet/resnet.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

class Groups : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  static std::vector<size_t> of(const SegmentGroups& groups) {
    std::vector<size_t> all;
    for (const SegmentInfo& s : groups.segments()) all.push_back(s.group);
    return all;
  }
};

using Numbers = std::vector<size_t>;

StepRequest classifier(const std::function<std::unique_ptr<Network>(at::Device)>& network,
                       const std::function<Tensors(at::Device)>& inputs, int64_t batch) {
  return {
      .network = network, .micro_batch = [=](at::Device device, int64_t) {
        return StepInputs{inputs(device), at::zeros({batch}, at::device(device).dtype(at::kLong))};
      }};
}

StepRequest encoder_step(const EncoderConfig& c) {
  return classifier(
      [c](at::Device d) {
        return std::make_unique<Encoder>(c, Policy::preset("off"), NetworkOptions{.device = d});
      },
      [](at::Device d) { return encoder_inputs(d, 2, 16); }, 2);
}

TEST_F(Groups, BlocksOfALlamaAreAlike) {
  const PlanRequest r =
      small_request("off", at::kFloat, {.batch = 2, .length = 32}, small_shape(3));
  const SegmentGroups groups(step_request(r));
  EXPECT_EQ(of(groups), (Numbers{0, 0, 0, 1}));
  EXPECT_EQ(groups.samples().size(), 2);
  const SegmentInfo& block = groups.segments()[2];
  EXPECT_EQ(block.name, "layers.2");
  EXPECT_EQ(block.held.size(), 9);
  EXPECT_EQ(block.rebuilt.size(), 8);  // all but the block's input
  std::map<std::string, bool> projectable;
  for (const SegmentMatrix& m : block.matrices) projectable[m.name] = m.projectable;
  // The attention's own backward pass reads what it gave.
  EXPECT_EQ(projectable, (std::map<std::string, bool>{{"layers.2.attn.qkv", true},
                                                      {"layers.2.attn.out", false},
                                                      {"layers.2.mlp.gate_up", true},
                                                      {"layers.2.mlp.down", true}}));
  EXPECT_TRUE(groups.segments()[3].matrices.empty());
  EXPECT_EQ(groups.tokens(), 64);
  EXPECT_EQ(groups.head_products(), 2.0 * 64 * 512 * 64);
}

TEST_F(Groups, BlocksWithoutRotaryPositionsAreOthers) {
  LlamaConfig c = small_shape(3);
  c.rope_layers = {false, true, false};
  c.block.head_norms = c.block.qkv_bias = true;
  const SegmentGroups groups(
      step_request(small_request("off", at::kFloat, {.batch = 2, .length = 32}, c)));
  EXPECT_EQ(of(groups), (Numbers{0, 1, 0, 2}));
  const SegmentInfo& block = groups.segments()[1];
  EXPECT_EQ(block.rebuilt.size(), 9);  // what attention reads beside the product
  EXPECT_EQ(block.matrices.size(), 4);
}

TEST_F(Groups, OneWithAFrozenMatrixIsNot) {
  const PlanRequest r = small_request("grad layers.1.mlp.down = frozen", at::kFloat,
                                      {.batch = 2, .length = 32}, small_shape(3));
  EXPECT_EQ(of(SegmentGroups(step_request(r))), (Numbers{0, 1, 0, 2}));
}

TEST_F(Groups, TheFirstBlockOfAnEncoderHasADropoutOfItsOwn) {
  EncoderConfig c = small_encoder();
  c.hidden_dropout = 0;
  EXPECT_EQ(of(SegmentGroups(encoder_step(c))), (Numbers{0, 0, 0, 1}));
  c.hidden_dropout = 0.1;
  const SegmentGroups groups(encoder_step(c));
  EXPECT_EQ(of(groups), (Numbers{0, 1, 1, 2}));
  EXPECT_FALSE(groups.head().defined());
  EXPECT_EQ(groups.head_products(), 0);
}

TEST_F(Groups, BlocksOfAResidualNetworkAreAlikeWhereTheirMapsAre) {
  const ResnetConfig c{.blocks = {3, 3}, .width = 8, .small_images = true, .classes = 5};
  const SegmentGroups groups(classifier(
      [c](at::Device d) {
        return std::make_unique<Resnet>(c, Policy::preset("off"), NetworkOptions{.device = d});
      },
      [](at::Device d) {
        return Tensors{at::zeros({2, 3, 16, 16}, at::device(d))};
      },
      2));
  // The stem; three blocks; one that halves the map; two; the average.
  EXPECT_EQ(of(groups), (Numbers{0, 1, 1, 1, 2, 3, 3, 4}));
  EXPECT_FALSE(groups.samples()[0].input_gradient);  // images have none
  EXPECT_TRUE(groups.samples()[1].input_gradient);
  EXPECT_FALSE(Variants::any_projectable(groups));
}

}  // namespace
}  // namespace compact
