// SPDX-License-Identifier: Apache-2.0
// The behaviour of a segment as an autograd node.
#include "compact/ops/segments/segment.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "compact/base/check.h"
#include "compact/ops/memory/memory.h"
#include "compact/ops/stages/stages.h"
#include "tests/ops/block.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using testing::HasSubstr;

// A block of plain differentiable operations.
at::Tensor plain_block(const Block& b, const at::Tensor& x) {
  const auto norm = [](const at::Tensor& t, const at::Tensor& w) {
    return t * (t.square().mean(-1, true) + 1e-5).rsqrt() * w;
  };
  const auto heads = [](const at::Tensor& t) {
    return t.unflatten(2, {-1, Block::kDim}).transpose(1, 2);
  };
  const auto rotate = [&](const at::Tensor& t) {
    const at::Tensor cos = b.rope->near.cos.narrow(0, 0, Block::kLength).to(t.scalar_type());
    const at::Tensor sin = b.rope->near.sin.narrow(0, 0, Block::kLength).to(t.scalar_type());
    const auto half = t.chunk(2, -1);
    return at::cat({half[0] * cos - half[1] * sin, half[1] * cos + half[0] * sin}, -1);
  };
  const auto w = [&](const Parameter& p) { return p.weight.to(x.scalar_type()); };
  const auto parts =
      at::linear(norm(x, w(b.attn_norm)), w(b.qkv))
          .split_with_sizes(
              {Block::kWidth, Block::kKvHeads * Block::kDim, Block::kKvHeads * Block::kDim}, 2);
  const int64_t group = Block::kHeads / Block::kKvHeads;
  const at::Tensor q = rotate(heads(parts[0]));
  const at::Tensor k = rotate(heads(parts[1])).repeat_interleave(group, 1);
  const at::Tensor v = heads(parts[2]).repeat_interleave(group, 1);
  const at::Tensor future = at::ones({Block::kLength, Block::kLength}, at::kBool).triu(1);
  const at::Tensor scores =
      (q.matmul(k.transpose(2, 3)) / std::sqrt(double{Block::kDim})).masked_fill(future, -INFINITY);
  const at::Tensor mixed = scores.softmax(-1).matmul(v).transpose(1, 2).flatten(2);
  const at::Tensor middle = x + at::linear(mixed, w(b.out));
  const auto gate_up = at::linear(norm(middle, w(b.mlp_norm)), w(b.gate_up)).chunk(2, -1);
  return middle + at::linear(at::silu(gate_up[0]) * gate_up[1], w(b.down));
}

TEST(Segment, AgreesWithPlainOperationsInDouble) {
  Block block(at::kFloat);
  const std::vector<at::Tensor> got = run_block(block, *block.segment({}));
  const at::Tensor x = block.input();
  const at::Tensor y = plain_block(block, x.to(at::kDouble));
  y.backward(block.output_gradient().to(at::kDouble));
  std::vector<at::Tensor> want = block.take_gradients();
  want.push_back(y);
  want.push_back(x.grad());
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_LT(relative_error(got[i], want[i]), 2e-6) << i;
}

TEST(Segment, SecondBackwardWithRetainedGraphDoublesGradients) {
  Block block(at::kFloat);
  for (const Dropped dropped : kSome) {
    const auto segment = block.segment(dropped);
    std::vector<at::Tensor> once = run_block(block, *segment);
    const at::Tensor x = block.input();
    const at::Tensor y = (*segment)(x);
    y.backward(block.output_gradient(), /*retain_graph=*/true);
    y.backward(block.output_gradient());
    std::vector<at::Tensor> twice = block.take_gradients();
    for (size_t i = 0; i < twice.size(); ++i) {
      EXPECT_TRUE(same_bits(twice[i], once[i] * 2)) << dropped << " " << i;
    }
    EXPECT_TRUE(same_bits(x.grad(), once.back() * 2)) << dropped;
  }
}

TEST(Segment, SecondBackwardWithoutRetainedGraphIsRefused) {
  Block block(at::kFloat);
  const auto segment = block.segment({});
  const at::Tensor y = (*segment)(block.input());
  y.backward(block.output_gradient());
  EXPECT_THROW(y.backward(block.output_gradient()), c10::Error);
}

TEST(Segment, GradientsOfGradientsAreRefused) {
  Block block(at::kFloat);
  const auto segment = block.segment({});
  const at::Tensor y = (*segment)(block.input());
  EXPECT_THROW(y.backward(block.output_gradient(), true, /*create_graph=*/true), c10::Error);
}

TEST(Segment, ChangesInPlaceBetweenForwardAndBackwardAreRefused) {
  Block block(at::kFloat);
  for (const Dropped dropped : kSome) {
    const auto segment = block.segment(dropped);
    const at::Tensor leaf = block.input();
    at::Tensor x = leaf * 1;
    const at::Tensor y = (*segment)(x);
    x.detach().mul_(2);
    EXPECT_THROW(y.backward(block.output_gradient()), c10::Error) << dropped;

    for (Parameter* p : block.parameters()) {
      const at::Tensor z = (*segment)(block.input());
      at::NoGradGuard no_grad;
      p->weight.mul_(1);
      EXPECT_THROW(z.backward(block.output_gradient()), c10::Error) << dropped << p->name;
    }
  }
}

// As by `p.data = ...` of Python: what other nodes read then is the one or the other.
TEST(Segment, OtherMemoryGivenBetweenForwardAndBackwardIsRefused) {
  Block block(at::kFloat);
  for (const Dropped dropped : kSome) {
    const auto segment = block.segment(dropped);
    at::Tensor x = block.input();
    std::vector<at::Tensor> all = {x};
    for (Parameter* p : block.parameters()) all.push_back(p->weight);
    for (const at::Tensor& t : all) {
      const at::Tensor y = (*segment)(x);
      t.set_data(t.detach());
      y.backward(block.output_gradient(), /*retain_graph=*/true);
      t.set_data(t.detach().clone());
      EXPECT_THROW(y.backward(block.output_gradient()), c10::Error) << dropped << t.sizes();
    }
  }
}

TEST(Segment, LengthsChangedBeforeTheBackwardPassAreRefused) {
  Block block(at::kFloat);
  const auto segment = block.segment({});
  const at::Tensor lengths = at::full({block.input().size(0)}, 2, at::kLong);
  segment->pass.lengths = lengths;
  const at::Tensor y = (*segment)(block.input());
  lengths.sub_(1);
  EXPECT_THROW(y.backward(block.output_gradient()), c10::Error);
}

// A tensor added to itself; one that a sum begins with and a later sum reads.
TEST(Segment, SumsPassGradientsToEveryReader) {
  const auto gradient = [](const std::function<at::Tensor(const at::Tensor&)>& f) {
    const at::Tensor x = at::linspace(-2, 2, 24).reshape({3, 8}).requires_grad_();
    (f(x).sum() * 3).backward();
    return x.grad();
  };
  BoundSegment twice("block", Slot{"block.input", 8}), later("block", Slot{"block.input", 8});
  twice.add(gelu_stage(false));
  twice.add_residual(1);
  twice.finish();
  later.add(gelu_stage(false));
  later.add_residual(0);
  later.add_residual(1);
  later.finish();
  const auto g = [](const at::Tensor& x) { return at::gelu(x); };
  EXPECT_TRUE(at::allclose(gradient([&](const at::Tensor& x) { return twice(x); }),
                           gradient([&](const at::Tensor& x) { return g(x) * 2; })));
  EXPECT_TRUE(at::allclose(gradient([&](const at::Tensor& x) { return later(x); }),
                           gradient([&](const at::Tensor& x) { return g(x) * 2 + x; })));
}

TEST(Segment, ADroppedGraphLeavesNothingBehind) {
  install_counting_allocator();
  Block block(at::kFloat);
  for (const Dropped dropped : kSome) {
    const auto segment = block.segment(dropped);
    const at::Tensor x = block.input();
    const int64_t before = live_bytes(at::kCPU);
    (*segment)((*segment)(x));
    EXPECT_EQ(live_bytes(at::kCPU), before) << dropped;
  }
}

// A segment that ends in a tensor that its own backward pass reads.
TEST(Segment, ANodeDoesNotHoldItself) {
  install_counting_allocator();
  for (const char* how : {"keep", "recompute"}) {
    BoundSegment segment("block", Slot{"input", Block::kQkv});
    segment.add(attention_stage(Block::kHeads, Block::kKvHeads, Block::kDim), {},
                Slot{"out", Block::kWidth, Treatment::parse(how)});
    segment.finish();
    const at::Tensor x = noise({2, 5, Block::kQkv}, "x", at::kFloat).requires_grad_(true);
    const int64_t before = live_bytes(at::kCPU);
    at::Tensor y = segment(x);
    const int64_t extras = 10 * Block::kHeads * 4;
    EXPECT_EQ(live_bytes(at::kCPU) - before, static_cast<int64_t>(y.nbytes()) + extras);
    y.backward(at::ones_like(y));
    EXPECT_EQ(*segment.report.rebuilt, std::string(how) == "recompute" ? 1 : 0);
    y = segment(x);
    x.mutable_grad() = at::Tensor();
    y = at::Tensor();
    EXPECT_EQ(live_bytes(at::kCPU), before);
  }
}

TEST(Segment, GradientsAccumulateOverMicroBatches) {
  Block block(at::kFloat);
  for (const Dropped dropped : kSome) {
    const auto segment = block.segment(dropped);
    std::vector<std::vector<at::Tensor>> each;
    for (const char* label : {"a", "b"}) {
      (*segment)(block.input(label)).backward(block.output_gradient());
      each.push_back(block.take_gradients());
    }
    const at::Tensor first = (*segment)(block.input("a")), second = (*segment)(block.input("b"));
    first.backward(block.output_gradient());
    second.backward(block.output_gradient());
    const std::vector<at::Tensor> both = block.take_gradients();
    for (size_t i = 0; i < both.size(); ++i) {
      EXPECT_TRUE(same_bits(both[i], each[0][i] + each[1][i])) << dropped << " " << i;
    }
  }
}

TEST(Segment, WithoutGradientsNothingIsKept) {
  install_counting_allocator();
  Block block(at::kFloat);
  const auto segment = block.segment({});
  const at::Tensor x = block.input(), want = (*segment)(x).detach();
  const at::NoGradGuard no_grad;
  const int64_t before = live_bytes(at::kCPU);
  const at::Tensor y = (*segment)(x);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(live_bytes(at::kCPU) - before, static_cast<int64_t>(y.nbytes()));
  EXPECT_TRUE(same_bits(y, want));
}

TEST(Segment, FrozenParametersGetNoGradientAndChangeNoOther) {
  Block block(at::kFloat);
  for (const Dropped dropped : kSome) {
    const auto segment = block.segment(dropped);
    const std::vector<at::Tensor> want = run_block(block, *segment);
    const auto all = block.parameters();
    for (size_t frozen = 0; frozen < all.size(); ++frozen) {
      all[frozen]->weight.requires_grad_(false);
      const std::vector<at::Tensor> got = run_block(block, *segment);
      all[frozen]->weight.requires_grad_(true);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(same_bits(got[i], i == frozen ? at::Tensor() : want[i])) << frozen << " " << i;
      }
    }
  }
}

TEST(Segment, AnInputWithoutGradientGetsNone) {
  Block block(at::kFloat);
  const auto segment = block.segment(kSome[1]);
  std::vector<at::Tensor> want = run_block(block, *segment);
  const at::Tensor x = block.input().detach();
  (*segment)(x).backward(block.output_gradient());
  EXPECT_FALSE(x.grad().defined());
  want.resize(6);
  EXPECT_TRUE(same_bits(block.take_gradients(), want));
}

// Anybody's tensors are weights: here one that is made of others, which get its gradient.
TEST(Segment, WeightsMayBeMadeOfOtherTensors) {
  Block block(at::kFloat);
  for (const Dropped dropped : kSome) {
    const auto segment = block.segment(dropped);
    const at::Tensor whole = run_block(block, *segment)[2];
    const at::Tensor a = at::zeros({Block::kWidth, 2}).requires_grad_(true);
    const at::Tensor b = noise({2, Block::kWidth}, "b", at::kFloat).requires_grad_(true);
    std::vector<Weight> weights = weights_of(segment->parameters);
    weights[2] = block.out.weight.detach() + a.mm(b);
    static_cast<const Segment&> (*segment)(block.input(), weights)
        .backward(block.output_gradient());
    EXPECT_LT(relative_error(a.grad(), whole.mm(b.t())), 1e-6) << dropped;
    EXPECT_EQ(b.grad().count_nonzero().item<int64_t>(), 0) << dropped;  // times a, which is 0
    EXPECT_FALSE(block.out.weight.grad().defined()) << dropped;
    block.take_gradients();
  }
}

// As many ways lead from the last sum to the first as there are subsets of sums.
TEST(Segment, LongChainsOfSumsAreRebuilt) {
  constexpr int64_t kSums = 48;
  BoundSegment chain("chain", Slot{"chain.input", 8});
  for (int64_t i = 0; i < kSums; ++i) {
    const int from = chain.tensors() - 1;
    chain.add(gelu_stage(false));
    chain.add_residual(from);
  }
  chain.finish();
  EXPECT_FALSE(chain.rounded(chain.tensors() - 1));
  const at::Tensor x = at::linspace(-2, -1, 24).reshape({3, 8}).requires_grad_();
  chain(x).sum().backward();
  const at::Tensor got = x.grad().clone();
  x.mutable_grad().reset();
  at::Tensor y = x;
  for (int64_t i = 0; i < kSums; ++i) y = y + at::gelu(y);
  y.sum().backward();
  EXPECT_TRUE(at::allclose(got, x.grad()));
  EXPECT_EQ(*chain.report.rebuilt, 2 * (kSums - 1));
}

TEST(Segment, RefusesWhatCannotBe) {
  BoundSegment gone("block", Slot{"in", 4, Treatment::parse("recompute")});
  gone.add(gelu_stage(false));
  EXPECT_THROW(gone.finish(), InputError);
  BoundSegment early("early", Slot{"in", 4});
  early.add(gelu_stage(false));
  EXPECT_EQ(error_of([&] {
              early(at::ones({1, 1, 4}));
            }),
            "[segment] `early`: finish() must be called once all stages are there");
  early.finish();
  early.add(gelu_stage(false));
  EXPECT_THAT(error_of([&] { early(at::ones({1, 1, 4})); }), HasSubstr("finish() must be called"));
  for (const int tensor : {-1, 3, 7}) {
    const std::string what = cat("[segment] `early` has tensors 0 to 2, not ", tensor);
    EXPECT_EQ(error_of([&] { early.add_branch(tensor, gelu_stage(false)); }), what);
    EXPECT_EQ(error_of([&] { early.add_residual(tensor); }), what);
  }
  early.add_branch(0, gelu_stage(false));
  EXPECT_THAT(error_of([&] { early.finish(); }), HasSubstr("tensor 2 is read by no stage"));

  Block block(at::kFloat);
  for (const char* name : kDroppable) {  // no gradient is projected
    EXPECT_THAT(error_of([&] { block.segment({}, {name}); }),
                testing::AllOf(HasSubstr(name), HasSubstr("keep or recompute")));
  }
  BoundSegment never("block", Slot{"in", 4});  // the sum's gradient needs neither of its terms
  Parameter p;
  never.add(linear_stage(), {&p}, Slot{"unread", 4});
  never.add_residual(0);
  EXPECT_THROW(never.finish(), InputError);
}

}  // namespace
}  // namespace compact
