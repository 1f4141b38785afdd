// SPDX-License-Identifier: Apache-2.0
// Graph networks beside the same formulas with dense matrices.
#include "compact/models/graph/graph_network.h"
#include "compact/base/named.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "compact/base/check.h"

namespace compact {
namespace {

constexpr int64_t kNodes = 9, kFeatures = 5;

// A path with chords; node 8 has no neighbours.
at::Tensor adjacency() {
  at::Tensor a = at::zeros({kNodes, kNodes});
  const auto join = [&](int64_t i, int64_t j) { a[i][j] = a[j][i] = 1; };
  for (int64_t i = 0; i + 1 < 8; ++i) join(i, i + 1);
  join(0, 5);
  join(2, 7);
  return a;
}

Tensors inputs(bool whole) {
  Tensors in = {at::randn({kNodes, kFeatures}, at::detail::createCPUGenerator(3)),
                adjacency().nonzero().t().contiguous()};
  if (whole) {
    in.push_back(at::tensor({0, 0, 0, 0, 1, 1, 1, 1, 1}, at::kLong));
    in.push_back(at::tensor({4.f, 5.f}).unsqueeze(1));
  }
  return in;
}

at::Tensor weight(const GraphNetwork& net, const std::string& name) {
  for (const auto& [n, t] : net.named_tensors()) {
    if (n == name) return t;
  }
  ADD_FAILURE() << name;
  return {};
}

at::Tensor dense_layer(const GraphNetwork& net, const std::string& name, const at::Tensor& x,
                       int64_t heads) {
  const at::Tensor a = adjacency(), eye = at::eye(kNodes);
  const at::Tensor w = weight(net, name + ".weight"), b = weight(net, name + ".bias");
  switch (net.config().kind) {
    case GraphLayerKind::kConvolution: {
      const at::Tensor with = a + eye, root = with.sum(1).rsqrt();
      return (root.unsqueeze(1) * with * root).mm(x).mm(w.t()) + b;
    }
    case GraphLayerKind::kSample: {
      const at::Tensor mean = a / a.sum(1, true).clamp_min(1);
      return mean.mm(x).mm(w.t()) + x.mm(weight(net, name + ".self").t()) + b;
    }
    case GraphLayerKind::kAttention: {
      std::vector<at::Tensor> outs;
      const at::Tensor h = x.mm(w.t());
      const int64_t width = h.size(1) / heads;
      for (int64_t k = 0; k < heads; ++k) {
        const at::Tensor hk = h.narrow(1, k * width, width);
        const at::Tensor source = hk.mv(weight(net, name + ".attention_source")[k]);
        const at::Tensor target = hk.mv(weight(net, name + ".attention_target")[k]);
        const at::Tensor score = at::leaky_relu(target.unsqueeze(1) + source.unsqueeze(0), 0.2);
        const at::Tensor masked = score.masked_fill((a + eye).eq(0), -1e30);
        outs.push_back(masked.softmax(1).mm(hk));
      }
      return at::cat(outs, 1) + b;
    }
  }
  return {};
}

TEST(GraphNetwork, EqualsDenseMatrices) {
  for (const GraphNetInfo& info : graph_networks()) {
    for (const bool whole : {false, true}) {
      GraphNetConfig config = info.config;
      config.features = kFeatures;
      config.classes = 3;
      config.hidden = 4;
      config.whole_graphs = whole;
      const GraphNetwork net(config);
      const Tensors in = inputs(whole);
      const bool attention = config.kind == GraphLayerKind::kAttention;
      const at::NoGradGuard no_grad;
      const auto bend = [&](const at::Tensor& x) { return attention ? at::elu(x) : at::relu(x); };
      at::Tensor x = bend(dense_layer(net, "conv1", in[0], config.heads));
      x = dense_layer(net, "conv2", x, whole ? config.heads : 1);
      if (whole) {
        x = bend(x);
        x = at::stack({x.narrow(0, 0, 4).mean(0), x.narrow(0, 4, 5).mean(0)});
        x = at::linear(x, weight(net, "classifier.weight"), weight(net, "classifier.bias"));
      }
      const at::Tensor got = net.logits(in, {.training = false});
      EXPECT_TRUE(at::allclose(got, x, 1e-4, 1e-5)) << info.name << whole << got - x;
    }
  }
}

TEST(GraphNetwork, GradientOfNeighbourSumsIsTheProductWithTheTransposed) {
  const at::Tensor edges = adjacency().nonzero().t().contiguous();
  const auto graph = neighbours_of(edges, kNodes);
  at::Tensor x = at::randn({kNodes, 3}).requires_grad_(true);
  const at::Tensor g = at::randn({kNodes, 3});
  const at::Tensor y = sum_neighbours(x, graph);
  EXPECT_TRUE(at::allclose(y, adjacency().mm(x)));
  torch::autograd::backward({(y * g).sum()}, {});
  EXPECT_TRUE(at::allclose(x.grad(), adjacency().t().mm(g)));
  EXPECT_THROW(neighbours_of(at::zeros({3, 4}, at::kLong), kNodes), InputError);
  EXPECT_THROW(sum_neighbours(at::zeros({4, 3}), graph), InputError);
}

// Dropout follows from the noise key alone; 8 bits give nearly the same gradients.
TEST(GraphNetwork, NoiseDecidesDropoutAndRounding) {
  GraphNetConfig config = named(graph_networks(), "gat", "no model").config;
  config.features = kFeatures;
  const at::Tensor target = at::arange(kNodes).remainder(2);
  const auto gradient = [&](const GraphNetwork& net, uint64_t noise) {
    torch::autograd::backward({net.loss(inputs(false), target, {.noise = noise})}, {});
    const at::Tensor g = net.parameters()[0]->weight.grad();
    net.parameters()[0]->weight.mutable_grad().reset();
    return g;
  };
  const GraphNetwork net(config);
  const at::Tensor one = gradient(net, 1);
  EXPECT_TRUE(gradient(net, 1).equal(one));
  EXPECT_FALSE(at::allclose(gradient(net, 2), one));
  const GraphNetwork fine(config, Policy::parse("slot * = quantize:bits=8\n", "test"));
  EXPECT_TRUE(at::allclose(gradient(fine, 1), one, 0.05, 0.05 * one.abs().max().item<double>()));
}

TEST(GraphNetwork, RefusesOtherInputs) {
  const GraphNetwork net(named(graph_networks(), "gcn", "no model").config);
  EXPECT_THROW(net.logits(inputs(false), {.training = false}),
               InputError);  // one feature, not five
  EXPECT_THROW(net.logits(inputs(true), {.training = false}), InputError);
  EXPECT_THROW(named(graph_networks(), "gcm", "no model"), InputError);
  EXPECT_THROW(GraphNetwork({.dropout = 1}), InputError);
  const auto loss_under = [](const char* policy) {
    const GraphNetwork named({.features = kFeatures}, Policy::parse(policy, "test"));
    named.loss(inputs(false), at::zeros({kNodes}, at::kLong), {});
  };
  EXPECT_NO_THROW(loss_under("slot * = keep\n"));
  EXPECT_THROW(loss_under("slot conv7.* = quantize:bits=8\n"), InputError);  // no such slot
}

}  // namespace
}  // namespace compact
