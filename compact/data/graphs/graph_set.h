// SPDX-License-Identifier: Apache-2.0
// Graphs that are classified as wholes, from files read as hostile input.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace compact {

struct LabelledGraph {
  at::Tensor features;  // float32 [nodes, features]
  // int64 [2, edges], row 0 the source, row 1 the target: both directions, none twice, none from a
  // node to itself, ascending by source and target.
  at::Tensor edges;
  int64_t label = 0;  // in [0, classes)
};

// Which values stand for the classes and for the columns of tags, ascending.
struct GraphValues {
  std::vector<int64_t> labels, tags;
};

struct GraphSet {
  std::vector<LabelledGraph> graphs;
  int64_t features = 0, classes = 0;
  GraphValues values;
};

// Graphs from one of two forms. Features are the node's tag as one of as many columns as there are
// different tags, ascending, then its attributes; 1 where a set has neither. Labels are renumbered
// from 0, ascending. Both as `known` has them, where it is given: another value is an error.
//
// A file (Xu et al., "How powerful are graph neural networks?", 2019; perhaps compressed): the
// number of graphs; for each a line "nodes label" and, for each node, a line "tag degree
// neighbours... attributes...".
//
// A folder (TU Dortmund) of NAME_A.txt, edges as pairs of nodes counted from 1;
// NAME_graph_indicator.txt, the graph of each node, counted from 1; NAME_graph_labels.txt; and
// perhaps NAME_node_labels.txt and NAME_node_attributes.txt. Graphs may be 2^20 at most.
//
// Throws InputError with file and line on anything else, numbers that are not finite or out of
// range, graphs without nodes, edges between graphs, and more than 2^28 feature values.
GraphSet read_graph_set(const std::string& path, const GraphValues* known = nullptr);

}  // namespace compact
