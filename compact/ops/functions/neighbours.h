// SPDX-License-Identifier: Apache-2.0
// Sums over the neighbours of a graph's nodes: the sparse product of graph networks.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace compact {

// The neighbours of every node, as the rows of a symmetric 0/1 matrix (CSR).
struct Neighbours {
  at::Tensor rows;     // int32 [nodes + 1], where each node's neighbours begin
  at::Tensor columns;  // int32 [edges]
  at::Tensor degrees;  // f32 [nodes, 1]
};

// Throws InputError unless edges are int64 [2, count].
void check_edges(const at::Tensor& edges);

// From edges int64 [2, edges], ascending by row 0, both directions stored. Throws InputError on
// other shapes.
std::shared_ptr<const Neighbours> neighbours_of(const at::Tensor& edges, int64_t nodes);

// y[i] = sum over the neighbours j of i of x[j]. x [nodes, width], f32 or bf16. The backward pass
// is the same product, the matrix being symmetric, and keeps nothing but the graph.
at::Tensor sum_neighbours(const at::Tensor& x, const std::shared_ptr<const Neighbours>& graph);

// y[i] = sum over the neighbours j of i of w[i, j] x[j], in f32 inside; without gradients. values:
// w, f32 [edges] in the order of `columns`; x [nodes, width]. Or of several such w at once, f32
// [count, edges]; x [count * nodes, width], one after the other.
at::Tensor sparse_product(const Neighbours& graph, const at::Tensor& values, const at::Tensor& x);

}  // namespace compact
