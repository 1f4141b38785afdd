// SPDX-License-Identifier: Apache-2.0
// Saved tensors of plain operations under a budget: products, convolutions and attention run again,
// every bit as without a scope.
#include <ATen/Context.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "compact/ops/scopes/op_names.h"
#include "compact/ops/scopes/saved_tensor_store.h"
#include "tests/ops/rebuild.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Makes a network of the same weights every time, outside of any scope.
class TestWeights {
 public:
  at::Tensor operator()(at::IntArrayRef sizes) {
    if (next_ == all_.size()) all_.push_back(trained(sizes, all_.size() + 1));
    return all_[next_++];
  }
  // Their gradients are of the pass that begins.
  void begin() {
    for (at::Tensor& w : all_) w.mutable_grad().reset();
    next_ = 0;
  }
  const std::vector<at::Tensor>& all() const { return all_; }

 private:
  std::vector<at::Tensor> all_;
  size_t next_ = 0;
};

// Six blocks with attention, of 64 tokens.
at::Tensor transformer(TestWeights& weight) {
  at::Tensor x = at::mm(normal_tensor({64, 32}, 99), weight({32, 32}));
  for (int block = 0; block < 6; ++block) {
    const auto heads = [&](const at::Tensor& t) {
      return at::mm(t, weight({32, 32})).view({1, 64, 2, 16}).transpose(1, 2);
    };
    const at::Tensor h = at::layer_norm(x, {32}, weight({32}), weight({32}));
    const at::Tensor q = heads(h), k = heads(h), v = heads(h);
    const at::Tensor a = at::scaled_dot_product_attention(q, k, v, {}, 0, true);
    x = x + at::addmm(weight({32}), a.transpose(1, 2).reshape({64, 32}), weight({32, 32}));
    const at::Tensor g = at::mm(at::rms_norm(x, {32}, weight({32})), weight({32, 96}));
    x = x + at::mm(at::gelu(g), weight({96, 32}));
  }
  return x.square().mean();
}

// Eight residual blocks of convolutions, written in place.
at::Tensor images(TestWeights& weight) {
  at::Tensor x = at::conv2d(normal_tensor({2, 3, 16, 16}, 99), weight({8, 3, 3, 3}), {}, 1, 1);
  for (int block = 0; block < 8; ++block) {
    at::Tensor y = at::conv2d(x, weight({8, 8, 3, 3}), weight({8}), 1, 1);
    y = at::batch_norm(y, weight({8}), weight({8}), {}, {}, true, 0.1, 1e-5, false);
    at::relu_(y);
    y = at::conv_transpose2d(y, weight({8, 8, 3, 3}), {}, 1, 1);
    x = at::relu(x + at::batch_norm(y, weight({8}), weight({8}), {}, {}, true, 0.1, 1e-5, false));
  }
  return x.square().mean();
}

using Network = at::Tensor (*)(TestWeights&);

Held held_of(Network network, const Policy& policy) {
  TestWeights weights;
  network(weights);
  return expect_same_bits(
      [&] {
        weights.begin();
        const at::Tensor loss = network(weights);
        return Graph{loss, weights.all()};
      },
      {}, policy);
}

TEST(RebuildBudget, IsKeptBitForBit) {
  struct Case {
    Network network;
    int least;  // percent that can be kept
  };
  for (const auto& [network, least] : {Case{transformer, 25}, Case{images, 45}}) {
    SCOPED_TRACE(network == images ? "images" : "transformer");
    const int64_t plain = held_of(network, kRebuild).plain;
    for (int percent = least; percent < 80; percent += 5) {
      const int64_t budget = plain * percent / 100;
      const Held held = held_of(network, within(std::to_string(budget)));
      EXPECT_LE(held.held + held.span, budget) << percent;
      EXPECT_GT(held.held + held.span, budget / 2) << percent;  // no more is run again than it asks
      const Held part = held_of(network, within(cat(percent, "%")));
      // This pass does not know yet of how many bytes it is a part.
      EXPECT_LE(part.held + part.span, std::max(budget, plain * 3 / 10)) << percent;
    }
  }
}

// Forty blocks with rotated queries and keys, which are in a cache.
at::Tensor rotated(TestWeights& weight) {
  const at::Tensor cos = at::cos(normal_tensor({64, 32}, 1)), sin = at::sin(cos);
  at::Tensor x = at::mm(normal_tensor({64, 32}, 99), weight({32, 32}));
  for (int block = 0; block < 40; ++block) {
    const at::Tensor h = at::rms_norm(x, {32}, weight({32}));
    const auto turned = [&](const at::Tensor& t) {
      const at::Tensor half = at::cat({t.narrow(1, 16, 16).neg(), t.narrow(1, 0, 16)}, 1);
      at::Tensor cache = at::empty({0});
      cache = at::cat({cache, t * cos + half * sin});
      return cache.view({1, 64, 2, 16}).transpose(1, 2);
    };
    const at::Tensor q = turned(at::mm(h, weight({32, 32}))),
                     k = turned(at::mm(h, weight({32, 32}))),
                     v = turned(at::mm(h, weight({32, 32})));
    const at::Tensor a = at::scaled_dot_product_attention(q, k, v, {}, 0, true);
    x = x + at::mm(a.transpose(1, 2).reshape({64, 32}), weight({32, 32}));
    const at::Tensor g = at::mm(at::rms_norm(x, {32}, weight({32})), weight({32, 96}));
    x = x + at::mm(at::gelu(g), weight({96, 32}));
  }
  return x.square().mean();
}

// Only some of the blocks' inputs are held, and no queries and keys: what spans two blocks is
// rebuilt of one of them.
TEST(RebuildBudget, DeepNetworksGoBelowTheInputsOfTheirBlocks) {
  const int64_t plain = held_of(rotated, kRebuild).plain;
  const auto keeps = [&](int percent) {
    try {
      const Held held = held_of(rotated, within(std::to_string(plain * percent / 100)));
      return held.held + held.span <= plain * percent / 100;
    } catch (const InputError&) {
      return false;
    }
  };
  int least = 40;
  while (least > 0 && keeps(least - 1)) --least;
  EXPECT_LE(least, 11);
}

// As far as it can be, without an error.
TEST(RebuildBudget, PartsThatCannotBeKeptAreApproached) {
  const Held held = held_of(images, within("5%"));
  EXPECT_GT(held.held + held.span, held.plain / 20);
  EXPECT_LT(held.held + held.span, held.plain * 4 / 5);
}

// Letting go of what spans more than it frees would raise what a pass takes.
TEST(RebuildBudget, ASmallerPartTakesNoMore) {
  const Network blocks = [](TestWeights& weight) {
    at::Tensor x = at::mm(normal_tensor({128, 64}, 99), weight({64, 64}));
    for (int block = 0; block < 8; ++block) {
      x = x +
          at::relu(at::mm(at::layer_norm(x, {64}, weight({64}), weight({64})), weight({64, 64})));
    }
    return x.square().mean();
  };
  int64_t before = std::numeric_limits<int64_t>::max();
  for (const int percent : {90, 70, 50, 30, 10}) {
    const Held held = held_of(blocks, within(cat(percent, "%")));
    EXPECT_LE(held.held + held.span, std::max(before, held.plain * percent / 100)) << percent;
    before = held.held + held.span;
  }
}

TEST(RebuildBudget, SaysWhereItCannotBeKept) {
  TestWeights weights;
  const SavedTensorScope scope(within("50000"), {.parameters = {}, .least_elements = 0});
  EXPECT_THAT(
      error_of([&] { transformer(weights); }),
      AllOf(HasSubstr("a budget of 50000 bytes cannot be kept"), HasSubstr("are held after `")));
}

// Graphs of passes before are a part of what is held.
TEST(RebuildBudget, CountsGraphsThatLive) {
  TestWeights weights;
  transformer(weights);
  SavedTensorStore store(within("400000"), {.parameters = {}, .least_elements = 0});
  EXPECT_EQ(store.live_bytes(), 0);
  const HeldTensor first = store.pack(normal_tensor({256, 256}, 1));
  store.begin({}, {}, 0);
  const at::Tensor t = normal_tensor({256, 256}, 2), u = normal_tensor({256}, 3);
  const OpWatch watch(store.tape());
  const HeldTensor second = store.pack(t);
  EXPECT_EQ(store.live_bytes(), 2 * 256 * 256 * 4);
  u.add(1);
  EXPECT_THROW(store.pack(u), InputError);
}

TEST(RebuildBudget, SettingsOfPrecisionMayNotChangeBetweenThePasses) {
  TestWeights weights;
  at::Tensor loss;
  {
    const SavedTensorScope scope(within("30%"), {.parameters = {}, .least_elements = 0});
    loss = transformer(weights);
  }
  at::Context& context = at::globalContext();
  const bool before = context.deterministicAlgorithms();
  context.setDeterministicAlgorithms(!before, true);
  EXPECT_THAT(error_of<c10::Error>([&] { torch::autograd::backward({loss}, {}); }),
              HasSubstr("settings of its precision or algorithms"));
  context.setDeterministicAlgorithms(before, true);
}

TEST(RebuildBudget, OfAttentionThatDropsIsNotRunAgain) {
  const at::Tensor w = trained({32, 32}, 1);
  expect_same_bits(
      [&] {
        w.mutable_grad().reset();
        const at::Tensor q = at::mm(normal_tensor({64, 32}, 9), w).view({1, 2, 32, 32});
        return Graph{at::scaled_dot_product_attention(q, q, q, {}, 0.5).square().sum(), {w}};
      },
      {}, within("1%"));
}

TEST(RebuildBudget, PoliciesSayItInALineOfItsOwn) {
  const auto error = [](const std::string& text) {
    return error_of([&] { SavedTensorStore(Policy::parse(text, "test"), {.parameters = {}}); });
  };
  const std::string cheap = "slot role:cheap = recompute\n";
  EXPECT_EQ(error(cheap + "slot role:heavy = recompute:budget=1.5GiB"), "");
  EXPECT_EQ(error(cheap + "slot role:heavy = keep"), "");
  EXPECT_THAT(error("slot role:heavy = recompute:budget=40%"), HasSubstr("role:cheap = recompute"));
  EXPECT_THAT(error(cheap + "slot role:heavy = recompute"), HasSubstr("or has a budget"));
  EXPECT_THAT(error("slot role:{cheap,heavy} = recompute:budget=40%"), HasSubstr("of its own"));
  EXPECT_THAT(error("slot * = recompute:budget=40%"), HasSubstr("budgets are for"));
  for (const char* wrong : {"0", "-1", "100%", "0%", "-5%", "x", "1e99GiB", "%"}) {
    EXPECT_THAT(error(cat(cheap, "slot role:heavy = recompute:budget=", wrong)),
                HasSubstr("must be bytes, as 10GiB, or a part below 100%"))
        << wrong;
  }
}

}  // namespace
}  // namespace compact
