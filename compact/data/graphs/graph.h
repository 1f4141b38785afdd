// SPDX-License-Identifier: Apache-2.0
// One graph whose nodes are classified, from a file read as hostile input, and its split.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace compact {

struct Graph {
  at::Tensor features;  // float32 [nodes, features]
  // int64 [2, edges], row 0 the source, row 1 the target: both directions, none twice, none from a
  // node to itself, ascending by source and target.
  at::Tensor edges;
  at::Tensor labels;  // int64 [nodes], in [0, classes)
  int64_t classes = 0;
};

// A graph from numpy's archive of arrays, as Cora comes: adj_data, adj_indices, adj_indptr and
// adj_shape, a sparse matrix (CSR) of edges; attr_* alike, the features; labels. Other arrays are
// passed over. Edges are symmetrised; a stored 0 is none and other weights are dropped. Features
// stay as they are. Throws InputError with the array's name on a cut or corrupt archive, a wrong
// type or shape, row starts that descend, indices out of range or twice in a row, values that are
// not finite, negative labels, more than 1,024 members, 512 MiB an array, 2^27 nodes or 2^28
// feature values.
Graph read_graph_npz(const std::string& path);

struct NodeSplit {
  at::Tensor train, validation, test;  // int64 node indices, ascending; no node twice
};

// The split of Yang et al., "Revisiting semi-supervised learning with graph embeddings" (2016), at
// random: `per_class` nodes of every class to train on, then `validation` and `test` of the others.
// Equal for equal seeds. Throws InputError where a class, or what is left, is too small.
NodeSplit planetoid_split(const Graph& graph, uint64_t seed, int64_t per_class = 20,
                          int64_t validation = 500, int64_t test = 1000);

}  // namespace compact
