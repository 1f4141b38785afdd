// SPDX-License-Identifier: Apache-2.0
// Attention over edges beside softmaxes of dense matrices under autograd, and what it keeps.
#include "compact/ops/functions/graph_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "compact/base/check.h"
#include "compact/ops/functions/dropout.h"
#include "compact/ops/scopes/saved_tensors.h"

namespace compact {
namespace {

constexpr int64_t kNodes = 40, kHeads = 3, kHeadWidth = 5;

// A random graph in which node 7 has no neighbours.
at::Tensor adjacency() {
  at::Tensor a =
      at::rand({kNodes, kNodes}, at::detail::createCPUGenerator(1)).lt(0.1).to(at::kFloat);
  a = a.triu(1) + a.triu(1).t();
  a.select(0, 7).zero_();
  a.select(1, 7).zero_();
  return a;
}

at::Tensor edges() { return adjacency().nonzero().t().contiguous(); }

struct Leaves {
  at::Tensor x, source, target;
  explicit Leaves(double spread) {
    const auto make = [&](at::IntArrayRef sizes, uint64_t seed, double scale) {
      at::Tensor t = at::randn(sizes, at::detail::createCPUGenerator(seed)).mul_(scale);
      return t.requires_grad_(true);
    };
    x = make({kNodes, kHeads, kHeadWidth}, 2, 1);
    source = make({kNodes, kHeads}, 3, spread);
    target = make({kNodes, kHeads}, 4, spread);
  }
  std::vector<at::Tensor> grads() const { return {x.grad(), source.grad(), target.grad()}; }
};

at::Tensor dense(const Leaves& v, const AttentionGraph& graph, const GraphAttentionOptions& o) {
  const at::Tensor score = at::leaky_relu(v.source.t().unsqueeze(1) + v.target.t().unsqueeze(2),
                                          o.slope);  // [heads, i, j]
  const at::Tensor absent = (adjacency() + at::eye(kNodes)).eq(0);
  at::Tensor w = score.masked_fill(absent, -INFINITY).softmax(2);
  if (o.dropout > 0) {
    at::Tensor noise = at::zeros({kHeads, kNodes, kNodes});
    noise.index_put_({at::arange(kHeads).unsqueeze(1), graph.to.to(at::kLong),
                      graph.neighbours.columns.to(at::kLong)},
                     dropped(at::ones({graph.to.size(0), kHeads}), o.dropout, o.key).t());
    w = w * noise;
  }
  return at::einsum("hij,jhw->ihw", {w, v.x});
}

TEST(GraphAttention, ValuesAndGradientsAreThoseOfDenseSoftmaxes) {
  const auto graph = attention_graph_of(edges(), kNodes);
  const at::Tensor g = at::randn({kNodes, kHeads, kHeadWidth}, at::detail::createCPUGenerator(5));
  // 100: beyond what exp() can hold without the largest score taken off.
  for (const double spread : {1.0, 100.0}) {
    for (const double dropout : {0.0, 0.6}) {
      const GraphAttentionOptions o{.dropout = dropout, .key = 9};
      const Leaves ours(spread), theirs(spread);
      const at::Tensor y = graph_attention(ours.x, ours.source, ours.target, graph, o);
      const at::Tensor z = dense(theirs, *graph, o);
      EXPECT_TRUE(at::allclose(y, z, 1e-4, 1e-5)) << (y - z).abs().max();
      torch::autograd::backward({(y * g).sum()}, {});
      torch::autograd::backward({(z * g).sum()}, {});
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(at::allclose(ours.grads()[i], theirs.grads()[i], 1e-4, 1e-5))
            << i << " " << spread << " " << dropout << " "
            << (ours.grads()[i] - theirs.grads()[i]).abs().max();
      }
    }
  }
}

// Weights are rebuilt from exact scores whatever the level; only x is rounded.
TEST(GraphAttention, KeepsNothingOfTheEdgesSize) {
  const auto graph = attention_graph_of(edges(), kNodes);
  const Leaves v(1);
  SavedTensorScope scope(Policy::preset("gact-l1"), {.least_elements = 0});
  // Sums along a dimension are not run again.
  const at::Tensor x = v.x.cumsum(0), source = v.source.cumsum(0), target = v.target.cumsum(0);
  const int64_t before = static_cast<int64_t>(scope.report().tensors.size());
  const at::Tensor y = graph_attention(x, source, target, graph, {.dropout = 0.5, .key = 1});
  const SavedTensorReport report = scope.report();
  ASSERT_EQ(report.tensors.size() - before, 3);
  const std::string treatments[] = {"quantize:bits=4", "keep", "keep"};
  for (size_t i = 0; i < 3; ++i) {
    const SavedTensor& t = report.tensors[before + i];
    EXPECT_TRUE(t.treatment.text().starts_with(treatments[i]))
        << t.name << " " << t.treatment.text();
    EXPECT_NE(t.name.find("graph_attention.input"), std::string::npos) << t.name;
  }
  torch::autograd::backward({y.sum()}, {});
  EXPECT_THROW(torch::autograd::backward({y.sum()}, {}), std::exception);  // released
}

// A product of edges is made in parts where there are many.
TEST(GraphAttention, OfManyEdgesIsThatOfDenseMatrices) {
  constexpr int64_t kMany = 300, kWide = 16;
  const at::Tensor all = at::ones({kMany, kMany}) - at::eye(kMany);
  const auto graph = attention_graph_of(all.nonzero().t().contiguous(), kMany);
  ASSERT_EQ(graph->to.size(0), kMany * kMany);
  const auto leaf = [](at::IntArrayRef sizes, uint64_t seed) {
    return at::randn(sizes, at::detail::createCPUGenerator(seed)).requires_grad_(true);
  };
  const at::Tensor x = leaf({kMany, kHeads, kWide}, 1), s = leaf({kMany, kHeads}, 2),
                   t = leaf({kMany, kHeads}, 3), g = leaf({kMany, kHeads, kWide}, 4);
  const auto gradients = [&](const at::Tensor& y) {
    torch::autograd::backward({(y * g.detach()).sum()}, {});
    std::vector<at::Tensor> all = {y.detach()};
    for (const at::Tensor& leaf : {x, s, t}) {
      all.push_back(leaf.grad());
      leaf.mutable_grad().reset();
    }
    return all;
  };
  const auto ours = gradients(graph_attention(x, s, t, graph, {}));
  const at::Tensor w = at::leaky_relu(s.t().unsqueeze(1) + t.t().unsqueeze(2), 0.2).softmax(2);
  const auto theirs = gradients(at::einsum("hij,jhw->ihw", {w, x}));
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_LE((ours[i] - theirs[i]).norm().item<double>(), 1e-5 * theirs[i].norm().item<double>())
        << i;
  }
}

TEST(GraphAttention, RefusesOtherShapes) {
  const auto graph = attention_graph_of(edges(), kNodes);
  const Leaves v(1);
  EXPECT_THROW(graph_attention(v.x.narrow(0, 0, 3), v.source, v.target, graph, {}), InputError);
  EXPECT_THROW(graph_attention(v.x, v.source.t(), v.target, graph, {}), InputError);
  EXPECT_THROW(graph_attention(v.x, v.source, v.target, graph, {.dropout = 1}), InputError);
  EXPECT_THROW(attention_graph_of(at::zeros({3, 4}, at::kLong), kNodes), InputError);
}

}  // namespace
}  // namespace compact
