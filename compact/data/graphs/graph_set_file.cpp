// SPDX-License-Identifier: Apache-2.0
#include "compact/base/check.h"
#include "compact/data/graphs/graph_set_builder.h"

namespace compact {
namespace {

void read_node(FieldLines& lines, StatedGraph& graph, int64_t node, int64_t nodes,
               int64_t& attributes) {
  graph.tags.push_back(lines.integer("the tag"));
  const int64_t degree = lines.integer("the number of neighbours", 0, EdgeList::kMostNodes);
  for (int64_t e = 0; e < degree; ++e) {
    graph.edges.add(node, lines.integer("a neighbour", 0, nodes - 1));
  }
  graph.add_attributes(lines, attributes);
}

}  // namespace

GraphSet read_graph_set_file(const std::string& path, const GraphValues* known) {
  FieldLines lines(path);
  lines.next();
  const int64_t count = lines.integer("the number of graphs", 1, kMostGraphs);
  lines.end();
  std::vector<StatedGraph> graphs;
  int64_t attributes = StatedGraph::kUnknown;
  for (int64_t g = 0; g < count; ++g) {
    COMPACT_CHECK(lines.next(), path, ": must have ", count, " graphs, ends after ", g);
    StatedGraph& graph = graphs.emplace_back();
    const int64_t nodes = lines.integer("the number of nodes", 1, EdgeList::kMostNodes);
    graph.label = lines.integer("the graph's label");
    lines.end();
    for (int64_t node = 0; node < nodes; ++node) {
      COMPACT_CHECK(lines.next(), path, ": graph ", g, " must have ", nodes, " nodes, ends after ",
                    node);
      read_node(lines, graph, node, nodes, attributes);
    }
  }
  COMPACT_CHECK(!lines.next(), path, ": must have ", count, " graphs, goes on after them");
  return build_graph_set(std::move(graphs), true, attributes, path, known);
}

}  // namespace compact
