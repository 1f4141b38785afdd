// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/neighbours.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <array>

#include "compact/base/check.h"
#include "compact/ops/autograd/autograd.h"
#include "compact/ops/autograd/quiet.h"

namespace compact {
namespace {

at::Tensor product(const Neighbours& graph, const at::Tensor& x) {
  return sparse_product(graph, at::ones({graph.columns.numel()}, x.options().dtype(at::kFloat)), x);
}

struct NeighbourNode final : torch::autograd::Node {
  std::shared_ptr<const Neighbours> graph;
  std::string name() const override { return "CompActNeighbours"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "[neighbours] gradients of gradients are not supported");
    if (!grads[0].defined()) return {at::Tensor()};
    return {product(*graph, grads[0])};
  }
};

}  // namespace

void check_edges(const at::Tensor& edges) {
  COMPACT_CHECK(edges.dim() == 2 && edges.size(0) == 2 && edges.scalar_type() == at::kLong,
                "[neighbours] edges must be int64 [2, count], are ", edges.sizes());
}

std::shared_ptr<const Neighbours> neighbours_of(const at::Tensor& edges, int64_t nodes) {
  check_edges(edges);
  COMPACT_CHECK(edges.size(1) < int64_t{1} << 31 && nodes < int64_t{1} << 31,
                "[neighbours] at most 2^31 edges and nodes, not ", edges.size(1), " and ", nodes);
  const at::NoGradGuard no_grad;
  auto graph = std::make_shared<Neighbours>();
  const at::Tensor source = edges.select(0, 0);
  const at::Tensor counts = at::zeros({nodes + 1}, edges.options());
  counts.narrow(0, 1, nodes).index_add_(0, source, at::ones_like(source));
  graph->rows = counts.cumsum(0).to(at::kInt);
  graph->columns = edges.select(0, 1).to(at::kInt);
  graph->degrees = counts.narrow(0, 1, nodes).to(at::kFloat).unsqueeze(1);
  return graph;
}

at::Tensor sparse_product(const Neighbours& graph, const at::Tensor& values, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  const NoAutocast no_autocast;
  const int64_t count = values.dim() == 2 ? values.size(0) : 1, all = x.size(0),
                edges = graph.columns.size(0);
  COMPACT_CHECK(count * edges < int64_t{1} << 31 && all < int64_t{1} << 31,
                "[neighbours] at most 2^31 edges and nodes of all heads, not ", count * edges,
                " and ", all);
  at::Tensor rows = graph.rows, columns = graph.columns;
  if (count > 1) {
    const at::Tensor number = at::arange(count, rows.options()).unsqueeze(1);
    rows = at::cat({rows.narrow(0, 0, 1), (rows.slice(0, 1) + number * edges).view({-1})});
    columns = (columns + number * (all / count)).view({-1});
  }
  const at::Tensor dense = x.to(at::kFloat).contiguous();
  if (x.is_meta()) return at::empty_like(dense).to(x.scalar_type());
  const QuietWarnings quiet;  // of sparse tensors being in beta state
  const at::Tensor matrix = at::_sparse_csr_tensor_unsafe(
      rows, columns, values.reshape({-1}), {all, all}, values.options().layout(at::kSparseCsr));
  // at::mm would make a second tensor of zeros.
  return at::zeros_like(dense).addmm_(matrix, dense).to(x.scalar_type());
}

at::Tensor sum_neighbours(const at::Tensor& x, const std::shared_ptr<const Neighbours>& graph) {
  COMPACT_CHECK(x.dim() == 2 && x.size(0) == graph->degrees.size(0), "[neighbours] x must be [",
                graph->degrees.size(0), ", width], is ", x.sizes());
  check_plain("neighbours", x);
  at::Tensor y = product(*graph, x);
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return y;
  NodePtr node = make_node<NeighbourNode>();
  static_cast<NeighbourNode*>(node.get())->graph = graph;
  connect(node, std::array{x});
  torch::autograd::set_history(y, node);
  return y;
}

}  // namespace compact
