// SPDX-License-Identifier: Apache-2.0
// Which element types meet in a node, and which tensors it refuses.
#include <ATen/autocast_mode.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <functional>

#include "compact/base/check.h"
#include "compact/ops/functions/dropout.h"
#include "compact/ops/functions/loss.h"
#include "compact/ops/functions/neighbours.h"
#include "compact/ops/stages/map_stages.h"
#include "tests/ops/block.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using testing::HasSubstr;
constexpr at::ScalarType kHalf = at::kBFloat16, kSingle = at::kFloat;

void expect_refused(const char* what, const std::function<void()>& run, const char* text) {
  EXPECT_THAT(error_of(run), testing::AllOf(HasSubstr(text), testing::Not(HasSubstr("\n"))))
      << what;
}

void widen_norms(Block& block) {
  for (Parameter* p : {&block.attn_norm, &block.mlp_norm}) {
    p->weight = p->weight.detach().to(kSingle).requires_grad_(true);
  }
}

// Activations in bf16; the norms' weights are the same numbers in f32. All is as with weights in
// bf16, but for the gradients of these, which are not rounded.
TEST(Types, ANormInFloat32GivesTheSameBitsUnderEveryAssignment) {
  Block narrow(kHalf), wide(kHalf);
  widen_norms(wide);
  const std::vector<at::Tensor> want = run_block(narrow, *narrow.segment({}));
  const std::vector<at::Tensor> first = run_block(wide, *wide.segment({}));
  for (const size_t i : {0, 3}) EXPECT_EQ(first[i].scalar_type(), kSingle);
  for (int mask = 0; mask < 256; ++mask) {
    std::vector<at::Tensor> got = run_block(wide, *wide.segment(Dropped(mask)));
    EXPECT_TRUE(same_bits(got, first)) << mask;
    for (const size_t i : {0, 3}) got[i] = got[i].to(kHalf);
    EXPECT_TRUE(same_bits(got, want)) << mask;
  }
}

struct Autocast {
  Autocast() {
    at::autocast::set_autocast_dtype(at::kCPU, kHalf);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
};

TEST(Types, AutocastDoesNotReachInside) {
  Block block(kSingle);
  Parameter head{.name = "head", .weight = noise({19, 8}, "head", kSingle).requires_grad_(true)};
  const at::Tensor hidden = noise({11, 8}, "hidden", kSingle).requires_grad_(true);
  const auto run_loss = [&](int64_t chunk) {
    const at::Tensor loss =
        linear_cross_entropy(hidden, head.weight, at::arange(11, at::kLong), 0.5, {chunk});
    loss.backward();
    const std::vector<at::Tensor> all = {loss.detach(), hidden.grad(), head.weight.grad()};
    hidden.mutable_grad() = head.weight.mutable_grad() = at::Tensor();
    return all;
  };
  for (const int mask : {0, 0b11010001, 0b11111111}) {
    const auto segment = block.segment(Dropped(mask));
    const std::vector<at::Tensor> want = run_block(block, *segment);
    const Autocast on;
    ASSERT_EQ(at::linear(hidden, head.weight).scalar_type(), kHalf);
    EXPECT_TRUE(same_bits(run_block(block, *segment), want)) << mask;
  }
  for (const int64_t chunk : {0, 4}) {
    const std::vector<at::Tensor> want = run_loss(chunk);
    const Autocast on;
    EXPECT_TRUE(same_bits(run_loss(chunk), want)) << chunk;
  }
}

TEST(Types, WhatAKernelWouldMisreadIsRefused) {
  Block single(kSingle), half(kHalf);
  const auto forward = [](std::shared_ptr<const Stage> stage, const at::Tensor& x,
                          std::vector<const Parameter*> read = {}) {
    return [=] {
      BoundSegment s("one", Slot{"in", x.size(-1)});
      s.add(stage);
      s.parameters = read;
      s.finish();
      s(x);
    };
  };
  const at::Tensor x = noise({2, 5, Block::kWidth}, "x", kSingle), xh = x.to(kHalf);
  expect_refused("linear", forward(linear_stage(), xh, {&single.out}), "[linear] weight must be");
  expect_refused("norm", forward(rms_norm_stage(1e-5), x, {&half.attn_norm}),
                 "[rms norm] weight must be Float on cpu beside activations of Float, is BFloat16");
  expect_refused("norm's width",
                 forward(rms_norm_stage(1e-5), xh.narrow(2, 0, 8), {&half.attn_norm}),
                 "[rms norm] weight must be contiguous [8]");
  expect_refused("norm of heads",
                 forward(head_norm_stage(1e-5, 4, 2, 8), noise({2, 5, 48}, "q", kSingle),
                         {&single.attn_norm, &single.attn_norm}),
                 "[rms norm] weight must be contiguous [8]");
  expect_refused("norm of more heads than there are",
                 forward(head_norm_stage(1e-5, 4, 2, 24), noise({2, 5, 48}, "q", kSingle),
                         {&single.attn_norm, &single.attn_norm}),
                 "[rms norm] 4 and 2 heads of 24 are more than rows of 48");
  expect_refused("norm in f64",
                 forward(rms_norm_stage(1e-5), x.to(at::kDouble), {&single.attn_norm}), "Double");
  expect_refused("bias", forward(linear_stage({.bias = true}), xh, {&half.out, &single.attn_norm}),
                 "[linear] bias");
  Parameter kernel{.name = "k", .weight = noise({3, 2, 1, 1}, "k", kSingle)};
  expect_refused("convolution",
                 forward(conv_stage(1, 1, 0), at::ones({1, 2, 4, 4}, kHalf), {&kernel}),
                 "[convolution] weight");
  auto tables = std::make_shared<RopeTables>(*single.rope);
  tables->near.cos = tables->near.cos.to(kHalf);
  const at::Tensor qkv = noise({2, 5, Block::kQkv}, "qkv", kHalf);
  expect_refused("tables", forward(rope_stage(tables, 6, Block::kDim), qkv), "[rope] cosines");
  expect_refused("positions",
                 forward(rope_stage(single.rope, 6, Block::kDim), at::ones({1, 17, 48})),
                 "[rope] positions up to 17");
  const at::Tensor rows = noise({5, Block::kQkv}, "qkv", kSingle);
  const RopeAngles& angles = single.rope->near;
  for (const at::Tensor& bad : {angles.sin.narrow(0, 0, 3), angles.sin.narrow(1, 0, 1),
                                angles.sin.t().contiguous().t(), angles.sin.view({-1})}) {
    auto shared = std::make_shared<RopeTables>(RopeTables{{angles.cos, bad}});
    expect_refused("sines", forward(rope_stage(shared, 6, Block::kDim), rows.unsqueeze(0)),
                   "[rope] cosines and sines");
  }
  Parameter complex{.name = "c", .weight = at::ones({4, 4}, at::kComplexFloat)};
  expect_refused("complex",
                 forward(linear_stage(), at::ones({2, 4}, at::kComplexFloat), {&complex}),
                 "[segment] `one` takes real floating-point tensors, not ComplexFloat");
  expect_refused("another window",
                 forward(conv_stage(3, 1, 1), at::ones({1, 2, 4, 4}, kSingle), {&kernel}),
                 "[convolution] the weight must be [out, in, 3, 3], is [3, 2, 1, 1]");
  expect_refused("too few weights", forward(linear_stage({.bias = true}), x, {&single.out}),
                 "[segment] `one` takes 2 weights, not 1");
  expect_refused("gate and up", forward(swiglu_stage(Block::kMlp), x), "[swiglu]");
  expect_refused(
      "dropout", [&] { drop_into(at::empty_like(xh), x, 0.5, 1); }, "[dropout] result");
  expect_refused(
      "dropout of more", [&] { drop_into(x.narrow(0, 0, 1), x, 0.5, 1); }, "[dropout] needs two");
  Parameter head{.name = "head", .weight = noise({19, Block::kWidth}, "head", kSingle)};
  expect_refused(
      "loss",
      [&] {
        linear_cross_entropy(xh, head.weight, at::zeros({2, 5}, at::kLong), 1, {0});
      },
      "[linear_cross_entropy] head must be BFloat16");
}

// Gradients and side outputs reach a stage from others.
TEST(Types, StagesRefuseGradientsOfAnotherType) {
  Block block(kHalf);
  const std::vector<Weight> weights = weights_of(std::vector<const Parameter*>{&block.attn_norm});
  const at::Tensor x = noise({2, 5, Block::kWidth}, "x", kHalf), rstd = at::ones({10});
  const Tensors extras = {rstd};
  const auto norm = rms_norm_stage(1e-5);
  for (const bool residual : {false, true}) {
    Stage::Backward b;
    b.input = x;
    b.gy = residual ? x : x.to(kSingle);
    if (residual) b.residual = x.to(kSingle);
    b.extras = &extras;
    b.weights = weights;
    b.want_parameters = {true};
    b.gparameters.resize(1);
    expect_refused(
        "norm", [&] { norm->backward(b); }, residual ? "residual" : "gradient");
  }
  for (const bool side : {false, true}) {
    Stage::Backward b;
    b.input = noise({2, 5, 2 * Block::kMlp}, "x", kHalf);
    b.gy = noise({2, 5, Block::kMlp}, "gy", side ? kHalf : kSingle);
    b.side = noise({2, 5, Block::kMlp}, "side", kSingle);
    expect_refused(
        "swiglu", [&] { swiglu_stage(Block::kMlp)->backward(b); }, side ? "silu" : "gradient");
  }
}

class Cast final : public Stage {
 public:
  Needs needs() const override { return {}; }
  at::Tensor forward(Forward& f) const override { return f.input.to(kHalf); }
  at::Tensor backward(Backward& b) const override { return b.gy.to(kSingle); }
};

TEST(Types, ASumChangesNoTypeUnseen) {
  BoundSegment s("layers.3", Slot{"in", 4});
  s.add(std::make_shared<Cast>());
  s.add_residual(0);
  s.finish();
  expect_refused(
      "sum",
      [&] {
        s(at::ones({2, 4}));
      },
      "[layers.3] the other term of a sum");
}

TEST(Types, TensorsThatAreNotPlainAreRefused) {
  Block block(kSingle);
  const auto segment = block.segment({});
  Parameter head{.name = "head", .weight = noise({19, Block::kWidth}, "head", kSingle)};
  const at::Tensor targets = at::zeros({Block::kTokens}, at::kLong);
  const auto refused = [&](const char* what, const at::Tensor& x, const char* text) {
    expect_refused(
        what, [&] { (*segment)(x); }, text);
    expect_refused(
        what, [&] { linear_cross_entropy(x, head.weight, targets, 1, {0}); }, text);
    const at::Tensor plain = head.weight;
    head.weight = x;
    expect_refused(
        what, [&] { linear_cross_entropy(block.input(), head.weight, targets, 1, {0}); }, text);
    head.weight = plain;
  };
  refused("vmap", at::functorch::makeBatched(at::ones({3, 2, 5, Block::kWidth}), 0, 1),
          "functorch");
  const at::Tensor many = at::functorch::makeBatched(at::ones({3, 2, 4}), 0, 1);
  const auto graph = neighbours_of(at::zeros({2, 1}, at::kLong), 2);
  expect_refused(
      "neighbours", [&] { sum_neighbours(many, graph); }, "functorch");
  at::Tensor subclass = block.input().detach();
  subclass.unsafeGetTensorImpl()->set_python_dispatch(true);
  refused("subclass", subclass, "plain memory");
  subclass.unsafeGetTensorImpl()->set_python_dispatch(false);
  refused("sparse", at::ones({2, 5, Block::kWidth}).to_sparse(), "plain memory");

  const uint64_t level = torch::autograd::ForwardADLevel::get_next_idx();
  {
    const at::Tensor x = block.input().detach();
    refused("dual", at::_make_dual(x, at::ones_like(x), static_cast<int64_t>(level)),
            "forward-mode");
    const at::Tensor weight = block.down.weight;
    block.down.weight = at::_make_dual(weight.detach(), at::ones_like(weight.detach()),
                                       static_cast<int64_t>(level));
    expect_refused(
        "dual weight", [&] { (*segment)(x); }, "forward-mode");
    block.down.weight = weight;
  }
  torch::autograd::ForwardADLevel::release_idx(level);
  EXPECT_NO_THROW((*segment)(block.input()));
}

}  // namespace
}  // namespace compact
