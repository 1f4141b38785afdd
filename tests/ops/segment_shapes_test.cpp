// SPDX-License-Identifier: Apache-2.0
// Segments on tensors of every stride, and of no elements.
#include <gtest/gtest.h>

#include "compact/base/check.h"
#include "compact/ops/stages/map_stages.h"
#include "compact/ops/stages/stages.h"
#include "tests/ops/block.h"

namespace compact {
namespace {

struct StageCase {
  std::shared_ptr<const Stage> stage;
  int64_t width;
  std::vector<const Parameter*> read = {};
};

// Every stage of transformers, on a block's weights.
struct BlockStages {
  Block block{at::kFloat};
  Parameter queries{.name = "q", .weight = noise({Block::kDim}, "q", at::kFloat)};
  Parameter keys{.name = "k", .weight = noise({Block::kDim}, "k", at::kFloat)};
  Parameter all_queries{.name = "qs",
                        .weight = noise({Block::kHeads * Block::kDim}, "qs", at::kFloat)};
  Parameter all_keys{.name = "ks",
                     .weight = noise({Block::kKvHeads * Block::kDim}, "ks", at::kFloat)};
  std::vector<StageCase> stages;

  BlockStages() {
    for (Parameter* p : {&queries, &keys, &all_queries, &all_keys}) p->weight.requires_grad_(true);
    stages = {
        {head_norm_stage(1e-5, Block::kHeads, Block::kKvHeads, Block::kDim),
         Block::kQkv,
         {&queries, &keys}},
        {scale_stage(0.3), Block::kWidth},
        {rms_norm_stage(1e-5), Block::kWidth, {&block.attn_norm}},
        {layer_norm_stage(1e-5), Block::kWidth, {&block.attn_norm, &block.mlp_norm}},
        {linear_stage(), Block::kWidth, {&block.out}},
        {dropout_stage(0.5), Block::kWidth},
        {rope_stage(block.rope, Block::kHeads + Block::kKvHeads, Block::kDim), Block::kQkv},
        {attention_stage(Block::kHeads, Block::kKvHeads, Block::kDim), Block::kQkv},
        {attention_stage(Block::kHeads, Block::kHeads, Block::kDim,
                         {.causal = false, .dropout = 0.5}),
         3 * Block::kWidth},
        {attention_stage(Block::kHeads, Block::kKvHeads, Block::kDim, {.window = 2, .softcap = 3}),
         Block::kQkv},
        {rms_norm_stage(1e-5, 1), Block::kWidth, {&block.attn_norm}},
        {head_norm_stage(1e-5, Block::kHeads, Block::kKvHeads, Block::kDim, 1),
         Block::kQkv,
         {&queries, &keys}},
        {head_norm_stage(1e-5, 1, 1, Block::kHeads * Block::kDim, 0, Block::kKvHeads * Block::kDim),
         Block::kQkv,
         {&all_queries, &all_keys}},
        {geglu_stage(Block::kMlp), 2 * Block::kMlp},
        {gelu_stage(true), Block::kMlp},
        {swiglu_stage(Block::kMlp), 2 * Block::kMlp}};
  }
};

// Each stage on activations whose rows do not lie one after another.
TEST(SegmentShapes, TakesStridedInputs) {
  BlockStages cases;
  for (size_t i = 0; i < cases.stages.size(); ++i) {
    const auto& [stage, width, read] = cases.stages[i];
    BoundSegment segment("block", Slot{"in", width});
    segment.add(stage);
    segment.parameters = read;
    segment.finish();
    segment.pass = {.training = true, .noise = 3};
    const auto run = [&](const at::Tensor& values) {
      const at::Tensor x = values.detach().requires_grad_(true);
      const at::Tensor y = segment(x);
      y.backward(noise(y.sizes(), "gy", at::kFloat));
      std::vector<at::Tensor> all = {y.detach(), x.grad()};
      for (const Parameter* p : segment.parameters) {
        all.push_back(p->weight.grad());
        p->weight.mutable_grad() = at::Tensor();
      }
      cases.block.take_gradients();
      return all;
    };
    const at::Tensor across = noise({5, 2, width}, "x", at::kFloat).transpose(0, 1);
    const at::Tensor along = noise({2, width, 5}, "x", at::kFloat).transpose(1, 2);
    for (const at::Tensor& strided : {across, along}) {
      ASSERT_FALSE(strided.is_contiguous());
      const auto got = run(strided), want = run(strided.contiguous());
      for (size_t k = 0; k < want.size(); ++k) {
        EXPECT_TRUE(at::allclose(got[k], want[k], 1e-5, 1e-6)) << "stage " << i << " result " << k;
      }
    }
  }
}

// The same of maps, channels anywhere.
TEST(SegmentShapes, TakesStridedMaps) {
  Parameter wide{.name = "w", .weight = noise({4, 4, 3, 3}, "w", at::kFloat)};
  Parameter one{.name = "one", .weight = noise({4, 4, 1, 1}, "one", at::kFloat)};
  Parameter scale{.name = "scale", .weight = noise({4}, "scale", at::kFloat)};
  const BatchNormStatistics statistics{at::zeros({4}), at::ones({4})};
  for (Parameter* p : {&wide, &one, &scale}) p->weight.requires_grad_(true);
  struct Case {
    const char* name;
    std::shared_ptr<const Stage> stage;
    std::vector<const Parameter*> read = {};
  };
  const Case stages[] = {{"convolution", conv_stage(3, 2, 1), {&wide}},
                         {"pixelwise convolution", conv_stage(1, 1, 0), {&one}},
                         {"batch norm", batch_norm_stage(statistics), {&scale, &scale}},
                         {"relu", relu_stage(false)},
                         {"relu with a mask", relu_stage(true)},
                         {"max pool", max_pool_stage()},
                         {"average", average_stage()},
                         {"slice and pad", slice_pad_stage(2, 2)}};
  const at::Tensor values = noise({3, 4, 6, 5}, "x", at::kFloat);
  for (const auto& [name, stage, read] : stages) {
    BoundSegment segment("maps", Slot{"in"});
    segment.add(stage, {}, Slot{stage->needs().output ? "out" : ""});
    segment.parameters = read;
    segment.finish();
    segment.pass.training = true;
    std::vector<at::Tensor> want;
    for (const std::vector<int64_t>& order :
         std::vector<std::vector<int64_t>>{{0, 1, 2, 3}, {0, 2, 3, 1}, {3, 0, 2, 1}}) {
      const at::Tensor laid = values.permute(order).contiguous();
      std::vector<int64_t> back(4);
      for (int64_t d = 0; d < 4; ++d) back[order[d]] = d;
      const at::Tensor x = laid.permute(back).detach().requires_grad_(true), y = segment(x);
      std::vector<int64_t> other(y.dim());  // the gradient lies the other way round
      for (int64_t d = 0; d < y.dim(); ++d) other[d] = y.dim() - 1 - d;
      y.backward(noise(y.sizes(), "gy", at::kFloat).permute(other).contiguous().permute(other));
      std::vector<at::Tensor> got = {y.detach(), x.grad()};
      for (Parameter* p : {&wide, &one, &scale}) {
        if (p->weight.grad().defined()) got.push_back(p->weight.grad());
        p->weight.mutable_grad() = at::Tensor();
      }
      if (want.empty()) want = got;
      for (size_t k = 0; k < want.size(); ++k) {
        EXPECT_TRUE(at::allclose(got[k], want[k], 1e-4, 1e-5)) << name << order << k;
      }
    }
  }
}

// A tensor that is seen as many cannot be written in place, be it its caller's or nobody's.
TEST(SegmentShapes, TakesExpandedInputsThatAreGivenUp) {
  BoundSegment relu("relu", Slot{}), sum("sum", Slot{});
  relu.add(relu_stage(/*mask=*/true));
  relu.finish();
  sum.add_residual(0);
  sum.finish();
  const auto given = [] { return at::linspace(-1, 1, 8).expand({3, 8}); };
  EXPECT_TRUE(at::equal(relu(given()), at::relu(given())));
  EXPECT_TRUE(at::equal(sum(given()), given() * 2));
}

// The gradient of a sum is one number seen as many.
TEST(SegmentShapes, TakesExpandedGradients) {
  BoundSegment s("block", Slot{"block.input", 8});
  s.add(gelu_stage(false));
  s.finish();
  const at::Tensor x = at::linspace(-2, 2, 24).reshape({3, 8}).requires_grad_();
  (s(x).sum() * 3).backward();
  const at::Tensor got = x.grad().clone();
  x.mutable_grad().reset();
  (at::gelu(x).sum() * 3).backward();
  EXPECT_TRUE(at::equal(got, x.grad()));
}

// Gradients that are expanded or strided come from sums and from other people's operations.
TEST(SegmentShapes, TakesStridedGradientsAndLeavesThemAlone) {
  Block block(at::kFloat);
  for (const Dropped dropped : kSome) {
    const auto segment = block.segment(dropped);
    const at::Tensor dense = at::full({Block::kBatch, Block::kLength, Block::kWidth}, 0.5);
    const at::Tensor expanded = at::full({1, 1, 1}, 0.5).expand(dense.sizes());
    const at::Tensor strided = dense.transpose(0, 2).contiguous().transpose(0, 2);
    std::vector<std::vector<at::Tensor>> got;
    for (const at::Tensor& gy : {dense, expanded, strided}) {
      const at::Tensor x = block.input(), copy = gy.clone();
      (*segment)(x).backward(gy);
      got.push_back(block.take_gradients());
      got.back().push_back(x.grad());
      EXPECT_TRUE(same_bits(gy, copy)) << dropped;
    }
    EXPECT_TRUE(same_bits(got[1], got[0])) << dropped;
    EXPECT_TRUE(same_bits(got[2], got[0])) << dropped;
  }
}

// Each stage as the last one of a segment, where the gradient is the caller's.
TEST(SegmentShapes, LastStagesLeaveTheCallersGradientAlone) {
  BlockStages cases;
  for (const auto& [stage, width, read] : cases.stages) {
    BoundSegment segment("block", Slot{"in", width});
    segment.add(stage);
    segment.parameters = read;
    segment.finish();
    segment.pass = {.training = true, .noise = 3};
    const at::Tensor x = noise({2, 5, width}, "x", at::kFloat).requires_grad_(true);
    const at::Tensor copy = x.detach().clone(), y = segment(x);
    const at::Tensor gy = noise(y.sizes(), "gy", at::kFloat), same = gy.clone();
    y.backward(gy, /*retain_graph=*/true);
    const at::Tensor once = x.grad().clone();
    y.backward(gy);
    EXPECT_TRUE(same_bits(gy, same)) << width;
    EXPECT_TRUE(same_bits(x, copy)) << width;
    EXPECT_TRUE(same_bits(x.grad(), once * 2)) << width;
    EXPECT_GT(once.abs().max().item<float>(), 0) << width;
  }
}

TEST(SegmentShapes, OneTokenAndNone) {
  Block block(at::kFloat);
  for (const Dropped dropped : kSome) {
    const auto segment = block.segment(dropped);
    for (const auto& [batch, length] : {std::pair(0, 1), {2, 0}, {1, 1}}) {
      const at::Tensor x = at::ones({batch, length, Block::kWidth}).requires_grad_(true);
      const at::Tensor y = (*segment)(x);
      EXPECT_EQ(y.sizes(), x.sizes());
      y.backward(at::ones_like(y));
      EXPECT_EQ(x.grad().sizes(), x.sizes());
      EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
      for (const at::Tensor& g : block.take_gradients()) {
        EXPECT_TRUE(g.isfinite().all().item<bool>());
        if (y.numel() == 0) {
          EXPECT_EQ(g.count_nonzero().item<int64_t>(), 0);
        }
      }
    }
  }
}

TEST(SegmentShapes, BatchNormsTakeNoImagesButMapsAlone) {
  Parameter scale{.name = "scale", .weight = at::ones({4}).requires_grad_(true)};
  BoundSegment segment("maps", Slot{"in"});
  segment.add(batch_norm_stage({at::zeros({4}), at::ones({4})}), {&scale, &scale});
  segment.finish();
  segment.pass.training = false;
  const at::Tensor x = at::empty({0, 4, 3, 3}).requires_grad_(true);
  segment(x).sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_EQ(scale.weight.grad().abs().sum().item<float>(), 0);
  EXPECT_THROW(segment(at::ones({2, 4})), InputError);
}

}  // namespace
}  // namespace compact
