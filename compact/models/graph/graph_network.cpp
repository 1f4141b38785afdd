// SPDX-License-Identifier: Apache-2.0
#include "compact/models/graph/graph_network.h"

#include <ATen/ATen.h>

#include <cmath>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/ops/memory/memory_trace.h"

namespace compact {
namespace {

using Graph = std::shared_ptr<const Neighbours>;

// D^-1/2 (A + I) D^-1/2 x, D the degrees of A + I.
at::Tensor normalized_sum(const at::Tensor& x, const Graph& graph) {
  const at::Tensor root = graph->degrees.add(1).rsqrt().to(x.scalar_type());
  const at::Tensor scaled = x * root;
  return (sum_neighbours(scaled, graph) + scaled) * root;
}

at::Tensor mean_of_neighbours(const at::Tensor& x, const Graph& graph) {
  return sum_neighbours(x, graph) * graph->degrees.clamp_min(1).reciprocal().to(x.scalar_type());
}

}  // namespace

std::span<const GraphNetInfo> graph_networks() {
  static const GraphNetInfo all[] = {
      {"gcn", "graph convolutions, 2 layers, hidden 16", {}},
      {"gat",
       "graph attention, 2 layers, 8 heads of 8",
       {.kind = GraphLayerKind::kAttention, .hidden = 8, .heads = 8, .dropout = 0.6}},
      {"graphsage",
       "means of neighbours, 2 layers, hidden 16",
       {.kind = GraphLayerKind::kSample, .hidden = 16}},
  };
  return all;
}

GraphNetwork::GraphNetwork(const GraphNetConfig& c, const Policy& policy,
                           const NetworkOptions& options)
    : Classifier(policy, options), config_(c) {
  COMPACT_CHECK(c.features >= 1 && c.classes >= 1 && c.hidden >= 1 && c.layers >= 1 && c.heads >= 1,
                "[graph network] features, classes, hidden, layers and heads must be at least 1");
  COMPACT_CHECK(c.dropout >= 0 && c.dropout < 1, "[graph network] dropout must be in [0, 1), is ",
                c.dropout);
  const auto matrix = [&](const std::string& name, int64_t out, int64_t in) {
    return parameter(name, normal(name, {out, in}, std::sqrt(2.0 / static_cast<double>(in + out))));
  };
  int64_t in = c.features;
  for (int64_t i = 0; i < c.layers; ++i) {
    const bool last = i + 1 == c.layers && !c.whole_graphs;
    Layer l{.name = cat("conv", i + 1), .width = last ? c.classes : c.hidden};
    if (c.kind == GraphLayerKind::kAttention && !last) l.heads = c.heads;
    const int64_t out = l.heads * l.width;
    l.weight = matrix(l.name + ".weight", out, in);
    if (c.kind == GraphLayerKind::kAttention) {
      l.second = matrix(l.name + ".attention_source", l.heads, l.width);
      l.third = matrix(l.name + ".attention_target", l.heads, l.width);
    } else if (c.kind == GraphLayerKind::kSample) {
      l.second = matrix(l.name + ".self", out, in);
    }
    l.bias = parameter(l.name + ".bias", at::zeros({out}, tensor_options()));
    layers_.push_back(std::move(l));
    in = out;
  }
  if (c.whole_graphs) {
    head_ = matrix("classifier.weight", c.classes, in);
    head_bias_ = parameter("classifier.bias", at::zeros({c.classes}, tensor_options()));
  }
  finish();
  place_weights();
}

at::Tensor GraphNetwork::attention(const Layer& l, const at::Tensor& x,
                                   const std::shared_ptr<const AttentionGraph>& graph,
                                   double dropout, DropoutKeys& keys) const {
  const int64_t nodes = x.size(0);
  const at::Tensor h = at::linear(x, l.weight->weight).view({nodes, l.heads, l.width});
  const at::Tensor source = (h * l.second->weight).sum(-1), target = (h * l.third->weight).sum(-1);
  const at::Tensor y = graph_attention(h, source, target, graph,
                                       {.dropout = dropout, .key = dropout > 0 ? keys.next() : 0});
  return y.view({nodes, l.heads * l.width}) + l.bias->weight;
}

at::Tensor GraphNetwork::logits(const Tensors& inputs, const Pass& pass, SegmentReport*) const {
  COMPACT_CHECK(inputs.size() == (config_.whole_graphs ? 4U : 2U),
                "[graph network] needs features and edges, of whole graphs also the graph of each "
                "node and sizes");
  const at::Tensor &features = inputs[0], &edges = inputs[1];
  COMPACT_CHECK(features.dim() == 2 && features.size(1) == config_.features,
                "[graph network] features must be [nodes, ", config_.features, "], are ",
                features.sizes());
  const bool attends = config_.kind == GraphLayerKind::kAttention;
  const Graph graph = attends ? nullptr : neighbours_of(edges, features.size(0));
  const auto attended = attends ? attention_graph_of(edges, features.size(0)) : nullptr;
  const double drop = pass.training ? config_.dropout : 0;
  DropoutKeys keys(pass);
  at::Tensor x = features.to(layers_[0].weight->weight.scalar_type());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& l = layers_[i];
    trace_moment(Phase::kForwardOf, l.name);
    x = keys.drop(x, drop);
    switch (config_.kind) {
      case GraphLayerKind::kConvolution:
        x = normalized_sum(at::linear(x, l.weight->weight), graph) + l.bias->weight;
        break;
      case GraphLayerKind::kSample:
        x = mean_of_neighbours(at::linear(x, l.weight->weight), graph) +
            at::linear(x, l.second->weight) + l.bias->weight;
        break;
      case GraphLayerKind::kAttention:
        x = attention(l, x, attended, drop, keys);
        break;
    }
    if (i + 1 == layers_.size() && !config_.whole_graphs) return x;
    x = attends ? at::elu(x) : at::relu(x);
  }
  const at::Tensor &graph_of = inputs[2], &sizes = inputs[3];
  const at::Tensor sum =
      at::zeros({sizes.size(0), x.size(1)}, x.options()).index_add(0, graph_of, x);
  x = sum / sizes.to(x.scalar_type());
  return at::linear(keys.drop(x, drop), head_->weight, head_bias_->weight);
}

std::vector<std::pair<std::string, at::Tensor>> GraphNetwork::named_tensors() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const Parameter* p : parameters()) all.emplace_back(p->name, p->weight.detach());
  return all;
}

}  // namespace compact
