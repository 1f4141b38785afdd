// SPDX-License-Identifier: Apache-2.0
// Attention over the edges of a graph (Velickovic et al. 2018) as one node, of which nothing of the
// edges' size is kept: weights and dropout are rebuilt exactly from two numbers a node and head.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "compact/ops/functions/neighbours.h"

namespace compact {

// A graph's edges and one from every node to itself.
struct AttentionGraph {
  Neighbours neighbours;
  at::Tensor to;       // int32 [edges], the row of each
  at::Tensor reverse;  // int32 [edges], the place of (j, i) where (i, j) is
};

// From edges int64 [2, edges], both directions of each, no node with itself.
std::shared_ptr<const AttentionGraph> attention_graph_of(const at::Tensor& edges, int64_t nodes);

struct GraphAttentionOptions {
  double slope = 0.2;  // of the leaky ReLU
  double dropout = 0;  // of weights, below 1
  uint64_t key = 0;    // of dropout
};

// y[i] = sum over j of w[i, j] x[j] with w[i, .] = softmax of leaky_relu(source[j] + target[i])
// over the edges (i, j), by heads; w [edges, heads] then under dropout. x [nodes, heads, width],
// source and target [nodes, heads], f32 or bf16. Keeps its three arguments, x through what hooks
// autograd has. Throws InputError on other shapes.
at::Tensor graph_attention(const at::Tensor& x, const at::Tensor& source, const at::Tensor& target,
                           const std::shared_ptr<const AttentionGraph>& graph,
                           const GraphAttentionOptions& options);

}  // namespace compact
