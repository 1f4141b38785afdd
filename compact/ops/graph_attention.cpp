// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/graph_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <cmath>

#include "compact/base/check.h"
#include "compact/codecs/draw.h"
#include "compact/ops/autograd.h"
#include "compact/ops/quiet.h"

namespace compact {
namespace {

// f32 [heads, nodes], memory in that order.
at::Tensor by_head(const at::Tensor& x) { return x.t().to(at::kFloat).contiguous(); }

// A node, its graph and how its weights are made.
struct Attention {
  std::shared_ptr<const AttentionGraph> graph;
  GraphAttentionOptions options;

  const at::Tensor& from() const { return graph->neighbours.columns; }
  const at::Tensor& to() const { return graph->to; }
  at::Tensor scores(const at::Tensor& source, const at::Tensor& target) const {
    return by_head(source).index_select(1, from()).add_(by_head(target).index_select(1, to()));
  }
  // Sums over the edges into (or, by `place` = from, out of) each node.
  at::Tensor sum(const at::Tensor& edges, const at::Tensor& place) const {
    return at::zeros({edges.size(0), graph->neighbours.degrees.size(0)}, edges.options())
        .index_add_(1, place, edges);
  }
  // f32 [heads, edges] before dropout.
  at::Tensor weights(const at::Tensor& source, const at::Tensor& target) const {
    at::Tensor w = scores(source, target);
    at::leaky_relu_(w, options.slope);
    const QuietWarnings quiet;  // index_reduce calls itself new
    const at::Tensor most =
        at::full({w.size(0), graph->neighbours.degrees.size(0)}, -INFINITY, w.options())
            .index_reduce_(1, to(), w, "amax");
    w.sub_(most.index_select(1, to())).exp_();
    return w.div_(sum(w, to()).index_select(1, to()));
  }
  // In place; the same for weights and for their gradients.
  void drop(at::Tensor& w) const {
    if (options.dropout == 0) return;
    w.mul_(draw_kept(w.sizes(), options.dropout, w.device(), options.key))
        .mul_(1 / (1 - options.dropout));
  }
  // [nodes, heads, width].
  at::Tensor product(const at::Tensor& w, const at::Tensor& x) const {
    at::Tensor y = at::empty(x.sizes(), x.options());
    for (int64_t h = 0; h < x.size(1); ++h) {
      y.select(1, h).copy_(sparse_product(graph->neighbours, w.select(0, h), x.select(1, h)));
    }
    return y;
  }
  // Of each weight: g[i] . x[j], f32 [heads, edges].
  at::Tensor edge_products(const at::Tensor& g, const at::Tensor& x) const {
    at::Tensor products = at::empty({x.size(1), to().size(0)}, x.options().dtype(at::kFloat));
    for (int64_t h = 0; h < x.size(1); ++h) {
      at::Tensor row = products.select(0, h);
      at::sum_out(row,
                  g.select(1, h)
                      .to(at::kFloat)
                      .index_select(0, to())
                      .mul_(x.select(1, h).to(at::kFloat).index_select(0, from())),
                  at::OptionalIntArrayRef({1}));
    }
    return products;
  }
};

struct GraphAttentionNode final : torch::autograd::Node {
  Attention attention;
  torch::autograd::SavedVariable x, source, target;

  std::string name() const override { return "CompActGraphAttention"; }
  void release_variables() override {
    for (auto* v : {&x, &source, &target}) v->reset_data();
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "[graph attention] gradients of gradients are not supported");
    if (!grads[0].defined()) return torch::autograd::variable_list(3);
    const at::NoGradGuard no_grad;
    const at::Tensor &g = grads[0], values = x.unpack(), s = source.unpack(), t = target.unpack();
    const at::Tensor w = attention.weights(s, t);
    at::Tensor dropped = attention.options.dropout == 0 ? w : w.clone();
    attention.drop(dropped);
    const at::Tensor gx = attention.product(dropped.index_select(1, attention.graph->reverse), g);
    dropped.reset();
    at::Tensor d = attention.edge_products(g, values);
    attention.drop(d);
    // Of the softmax, then of the leaky ReLU.
    d.sub_(attention.sum(d * w, attention.to()).index_select(1, attention.to())).mul_(w);
    d = at::where(attention.scores(s, t).gt(0), d, d * attention.options.slope);
    const auto back = [&](const at::Tensor& place, const at::Tensor& like) {
      return attention.sum(d, place).t().to(like.scalar_type()).contiguous();
    };
    return {gx, back(attention.from(), s), back(attention.to(), t)};
  }
};

}  // namespace

std::shared_ptr<const AttentionGraph> attention_graph_of(const at::Tensor& edges, int64_t nodes) {
  check_edges(edges);
  const at::NoGradGuard no_grad;
  const at::Tensor self = at::arange(nodes, edges.options()).expand({2, nodes});
  const at::Tensor all = at::cat({edges, self}, 1);
  const at::Tensor i = all.select(0, 0), j = all.select(0, 1);
  const at::Tensor sorted = all.index_select(1, (i * nodes + j).argsort());
  auto graph = std::make_shared<AttentionGraph>();
  graph->neighbours = *neighbours_of(sorted, nodes);
  graph->to = sorted.select(0, 0).to(at::kInt);
  graph->reverse = (sorted.select(0, 1) * nodes + sorted.select(0, 0)).argsort().to(at::kInt);
  return graph;
}

at::Tensor graph_attention(const at::Tensor& x, const at::Tensor& source, const at::Tensor& target,
                           const std::shared_ptr<const AttentionGraph>& graph,
                           const GraphAttentionOptions& options) {
  const int64_t nodes = graph->neighbours.degrees.size(0);
  COMPACT_CHECK(x.dim() == 3 && x.size(0) == nodes, "[graph attention] x must be [", nodes,
                ", heads, width], is ", x.sizes());
  for (const at::Tensor* t : {&x, &source, &target}) check_plain("graph attention", *t);
  for (const at::Tensor* t : {&source, &target}) {
    COMPACT_CHECK(t->dim() == 2 && t->size(0) == nodes && t->size(1) == x.size(1),
                  "[graph attention] source and target must be [", nodes, ", ", x.size(1),
                  "], one is ", t->sizes());
  }
  COMPACT_CHECK(options.dropout >= 0 && options.dropout < 1,
                "[graph attention] dropout must be in [0, 1), is ", options.dropout);
  RECORD_FUNCTION("graph_attention", std::vector<c10::IValue>({x, source, target}));
  const Attention attention{graph, options};
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    at::Tensor w = attention.weights(source, target);
    attention.drop(w);
    y = attention.product(w, x);
  }
  if (!at::GradMode::is_enabled() || !any_requires_grad(x, std::array{source, target})) return y;
  NodePtr node = make_node<GraphAttentionNode>();
  auto& n = static_cast<GraphAttentionNode&>(*node);
  n.attention = attention;
  n.x = torch::autograd::SavedVariable(x, /*is_output=*/false);
  n.source = torch::autograd::SavedVariable(source, false);
  n.target = torch::autograd::SavedVariable(target, false);
  connect(node, std::array{x, source, target});
  torch::autograd::set_history(y, node);
  return y;
}

}  // namespace compact
