// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/graph_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>

#include "compact/base/check.h"
#include "compact/ops/autograd/autograd.h"
#include "compact/ops/functions/dropout.h"

namespace compact {
namespace {

// Most elements of products over edges that are in memory at once.
constexpr int64_t kMostProducts = int64_t{1} << 19;

// The graph and the options of one call. Values of edges are f32 [edges, heads].
struct Attention {
  std::shared_ptr<const AttentionGraph> graph;
  GraphAttentionOptions options;

  const at::Tensor& from() const { return graph->neighbours.columns; }
  const at::Tensor& to() const { return graph->to; }
  at::Tensor scores(const at::Tensor& source, const at::Tensor& target) const {
    return source.to(at::kFloat)
        .index_select(0, from())
        .add_(target.to(at::kFloat).index_select(0, to()));
  }
  // Over the edges into each node, f32 [nodes, heads]: "sum" or "max".
  at::Tensor reduced(const at::Tensor& edges, const char* how) const {
    const at::Tensor& rows = graph->neighbours.rows;
    if (edges.is_meta()) return at::empty({rows.size(0) - 1, edges.size(1)}, edges.options());
    return at::segment_reduce(edges, how, /*lengths=*/{}, /*indices=*/{}, rows, 0, /*unsafe=*/true);
  }
  // Attention weights before dropout.
  at::Tensor weights(const at::Tensor& source, const at::Tensor& target) const {
    at::Tensor w = scores(source, target);
    at::leaky_relu_(w, options.slope);
    w.sub_(reduced(w, "max").index_select(0, to())).exp_();
    return w.div_(reduced(w, "sum").index_select(0, to()));
  }
  // In place; the same for weights and for their gradients.
  void drop(const at::Tensor& w) const {
    if (options.dropout > 0) drop_into(w, w, options.dropout, options.key);
  }
  // [nodes, heads, width], by one sparse product: the heads' matrices are stacked into one.
  at::Tensor product(const at::Tensor& w, const at::Tensor& x) const {
    const int64_t nodes = x.size(0), heads = x.size(1), width = x.size(2);
    const at::Tensor y = sparse_product(graph->neighbours, w.t().contiguous(),
                                        x.transpose(0, 1).reshape({heads * nodes, width}));
    return y.view({heads, nodes, width}).transpose(0, 1).contiguous();
  }
  // g[i] . x[j] for each edge (i, j).
  at::Tensor edge_products(const at::Tensor& g, const at::Tensor& x) const {
    const int64_t edges = to().size(0), heads = x.size(1),
                  step = std::max<int64_t>(1, kMostProducts / (heads * x.size(2)));
    const at::Tensor of_rows = g.to(at::kFloat), of_columns = x.to(at::kFloat);
    const at::Tensor ones = at::ones({x.size(2)}, of_rows.options()),
                     products = at::empty({edges, heads}, of_rows.options());
    for (int64_t e = 0; e < edges; e += step) {
      const int64_t count = std::min(step, edges - e);
      const at::Tensor part = of_rows.index_select(0, to().narrow(0, e, count))
                                  .mul_(of_columns.index_select(0, from().narrow(0, e, count)));
      at::Tensor sums = products.narrow(0, e, count).view({-1});
      at::mv_out(sums, part.view({-1, x.size(2)}), ones);  // faster than sums over so few
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
    const at::Tensor& reverse = attention.graph->reverse;
    at::Tensor dropped = attention.options.dropout == 0 ? w : w.clone();
    attention.drop(dropped);
    const at::Tensor gx = attention.product(dropped.index_select(0, reverse), g);
    dropped.reset();
    at::Tensor d = attention.edge_products(g, values);
    attention.drop(d);
    // Backward through the softmax, then through the leaky ReLU.
    d.sub_(attention.reduced(d * w, "sum").index_select(0, attention.to())).mul_(w);
    d = at::leaky_relu_backward(d, attention.scores(s, t), attention.options.slope, false);
    // The edges out of a node are the reverse of those into it.
    const at::Tensor gs = attention.reduced(d.index_select(0, reverse), "sum"),
                     gt = attention.reduced(d, "sum");
    return {gx, gs.to(s.scalar_type()), gt.to(t.scalar_type())};
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
  RECORD_FUNCTION("compact::graph_attention", std::vector<c10::IValue>({x, source, target}));
  const Attention attention{graph, options};
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    at::Tensor w = attention.weights(source, target);
    attention.drop(w);
    y = attention.product(w, x);
  }
  if (!at::GradMode::is_enabled() || !any_requires_grad(std::array{x, source, target})) return y;
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
