// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string_view>
#include <system_error>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/data/graphs/graph_set_builder.h"

namespace compact {
namespace {

// "FOLDER/NAME" of the one NAME_A.txt.
std::string prefix_in(const std::string& folder) {
  constexpr std::string_view kEdges = "_A.txt";
  std::string prefix;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path().string();
    if (!path.ends_with(kEdges)) continue;
    COMPACT_CHECK(prefix.empty(), folder, ": must have one file NAME_A.txt, has more");
    prefix = path.substr(0, path.size() - kEdges.size());
  }
  COMPACT_CHECK(!error, folder, ": cannot be read: ", error.message());
  COMPACT_CHECK(!prefix.empty(), folder, ": must have a file NAME_A.txt, the edges of its graphs");
  return prefix;
}

// Where each node of the set is.
struct Place {
  int64_t graph, node;
};

std::vector<StatedGraph> read_labels(const std::string& path) {
  std::vector<StatedGraph> graphs;
  FieldLines lines(path);
  while (lines.next()) {
    COMPACT_CHECK(static_cast<int64_t>(graphs.size()) < kMostGraphs, path, ": more than ",
                  kMostGraphs, " graphs");
    graphs.emplace_back().label = lines.integer("the graph's label");
    lines.end();
  }
  return graphs;
}

// Gives every graph its nodes, all of tag 0.
std::vector<Place> read_indicator(const std::string& path, std::vector<StatedGraph>& graphs) {
  const auto count = static_cast<int64_t>(graphs.size());
  std::vector<Place> places;
  FieldLines lines(path);
  while (lines.next()) {
    COMPACT_CHECK(static_cast<int64_t>(places.size()) < EdgeList::kMostNodes, path, ": more than ",
                  EdgeList::kMostNodes, " nodes");
    const int64_t graph = lines.integer("the graph", 1, count) - 1;
    lines.end();
    places.push_back({graph, static_cast<int64_t>(graphs[graph].tags.size())});
    graphs[graph].tags.push_back(0);
  }
  for (int64_t g = 0; g < count; ++g) {
    COMPACT_CHECK(!graphs[g].tags.empty(), path, ": every graph must have nodes, graph ", g + 1,
                  " of ", count, " has none");
  }
  return places;
}

void read_edges(const std::string& path, const std::vector<Place>& places,
                std::vector<StatedGraph>& graphs) {
  const auto nodes = static_cast<int64_t>(places.size());
  FieldLines lines(path);
  while (lines.next()) {
    const Place a = places[lines.integer("a node", 1, nodes) - 1];
    const Place b = places[lines.integer("a node", 1, nodes) - 1];
    lines.end();
    COMPACT_CHECK(a.graph == b.graph, lines.where(), ": an edge must stay in a graph, this joins ",
                  a.graph + 1, " and ", b.graph + 1);
    graphs[a.graph].edges.add(a.node, b.node);
  }
}

// Calls read(lines, place) on a line for every node.
template <class Read>
void read_nodes(const std::string& path, const std::vector<Place>& places, const Read& read) {
  FieldLines lines(path);
  for (const Place& place : places) {
    COMPACT_CHECK(lines.next(), path, ": must have a line for each of ", places.size(),
                  " nodes, ends after ", &place - places.data());
    read(lines, place);
    lines.end();
  }
  COMPACT_CHECK(!lines.next(), path, ": must have a line for each of ", places.size(),
                " nodes, has more");
}

}  // namespace

GraphSet read_graph_set_folder(const std::string& path, const GraphValues* known) {
  const std::string prefix = prefix_in(path);
  std::vector<StatedGraph> graphs = read_labels(prefix + "_graph_labels.txt");
  const std::vector<Place> places = read_indicator(prefix + "_graph_indicator.txt", graphs);
  read_edges(prefix + "_A.txt", places, graphs);
  const std::string tags = prefix + "_node_labels.txt";
  const bool tagged = is_file(tags);
  if (tagged) {
    read_nodes(tags, places, [&](FieldLines& lines, Place place) {
      graphs[place.graph].tags[place.node] = lines.integer("the node's label");
    });
  }
  int64_t attributes = 0;
  if (const std::string values = prefix + "_node_attributes.txt"; is_file(values)) {
    attributes = StatedGraph::kUnknown;
    read_nodes(values, places, [&](FieldLines& lines, Place place) {
      graphs[place.graph].add_attributes(lines, attributes);
    });
  }
  return build_graph_set(std::move(graphs), tagged || attributes == 0, attributes, path, known);
}

}  // namespace compact
