// SPDX-License-Identifier: Apache-2.0
// Saved tensors of plain operations under a budget: products, convolutions and attention run again,
// every bit as without a scope.
#include <ATen/Context.h>
#include <gmock/gmock.h>

#include <memory>
#include <string>

#include "tests/ops/rebuild.h"

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

Held held_of(Network network, const SavedTensorOptions& options) {
  TestWeights weights;
  network(weights);
  return expect_same_bits(
      [&] {
        weights.begin();
        const at::Tensor loss = network(weights);
        return Graph{loss, weights.all()};
      },
      {}, options);
}

SavedTensorOptions part(double budget) {
  return {.parameters = {}, .least_elements = 0, .budget = {.part = budget}};
}

TEST(RebuildBudget, IsKeptBitForBit) {
  for (const Network network : {images, transformer}) {
    const Held all = held_of(network, {.parameters = {}, .least_elements = 0});
    for (const double b : {0.7, 0.5, 0.4, 0.35, 0.3, 0.25, 0.2}) {
      SavedTensorOptions o{.parameters = {}, .least_elements = 0};
      o.budget.bytes = static_cast<int64_t>(b * all.plain);
      try {
        const Held held = held_of(network, o);
        printf("abs %.2f: held %.3f span %.3f\n", b, double(held.held) / held.plain,
               double(held.span) / held.plain);
      } catch (const InputError& e) {
        printf("abs %.2f: %s\n", b, e.what());
      }
    }
    for (const double budget : {0.9, 0.7, 0.5, 0.4, 0.3, 0.25}) {
      const Held held = held_of(network, part(budget));
      printf("%.2f: held %.3f span %.3f\n", budget, double(held.held) / held.plain, double(held.span) / held.plain);
      EXPECT_LE(held.held + held.span, budget * static_cast<double>(held.plain)) << budget;
    }
  }
}

}  // namespace
}  // namespace compact
