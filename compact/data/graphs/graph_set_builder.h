// SPDX-License-Identifier: Apache-2.0
// From graphs as files state them to a GraphSet; shared by the readers of graph_set.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compact/data/files/field_lines.h"
#include "compact/data/graphs/edge_list.h"
#include "compact/data/graphs/graph_set.h"

namespace compact {

constexpr int64_t kMostGraphs = int64_t{1} << 20;

struct StatedGraph {
  int64_t label = 0;
  std::vector<int64_t> tags;      // one a node
  std::vector<float> attributes;  // `attributes` a node, node after node
  EdgeList edges;

  // Takes the rest of a node's line, as many values as the first node has: kUnknown before it.
  static constexpr int64_t kUnknown = -1;
  void add_attributes(FieldLines& lines, int64_t& count);
};

// Features are the tags as columns, where `with_tags`, and the attributes, so many a node. Throws
// InputError that begins with `where` on too many values of features.
GraphSet build_graph_set(std::vector<StatedGraph> stated, bool with_tags, int64_t attributes,
                         const std::string& where, const GraphValues* known);

GraphSet read_graph_set_file(const std::string& path, const GraphValues* known);
GraphSet read_graph_set_folder(const std::string& path, const GraphValues* known);

}  // namespace compact
