// SPDX-License-Identifier: Apache-2.0
// Attention over a graph's edges (Velickovic et al. 2018) as one autograd node that keeps nothing
// of their size: it rebuilds weights and dropout exactly from two numbers a node and head.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "compact/ops/functions/neighbours.h"

namespace compact {

// A graph's edges, and a self-loop at every node.
struct AttentionGraph {
  Neighbours neighbours;
  at::Tensor to;       // int32 [edges], the row of each
  at::Tensor reverse;  // int32 [edges], for each edge (i, j) the number of (j, i)
};

// From edges int64 [2, edges], both directions of each, without self-loops.
std::shared_ptr<const AttentionGraph> attention_graph_of(const at::Tensor& edges, int64_t nodes);

struct GraphAttentionOptions {
  double slope = 0.2;  // of the leaky ReLU
  double dropout = 0;  // of weights, below 1
  uint64_t key = 0;    // of dropout
};

// y[i] = sum over j of w[i, j] x[j] with w[i, .] = softmax of leaky_relu(source[j] + target[i])
// over the edges (i, j), by heads; w [edges, heads] then under dropout. x [nodes, heads, width],
// source and target [nodes, heads], f32 or bf16. Keeps its three arguments, x as a saved tensor
// that hooks may replace. Throws InputError on other shapes.
at::Tensor graph_attention(const at::Tensor& x, const at::Tensor& source, const at::Tensor& target,
                           const std::shared_ptr<const AttentionGraph>& graph,
                           const GraphAttentionOptions& options);

}  // namespace compact
