// SPDX-License-Identifier: Apache-2.0
#include "compact/data/graphs/graph_set_builder.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/file.h"

namespace compact {
namespace {

constexpr int64_t kMostFeatures = int64_t{1} << 28;

void make_distinct(std::vector<int64_t>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

// `what`: names the values in the message where `value` is none of them.
int64_t place_in(const std::vector<int64_t>& sorted, int64_t value, const std::string& where,
                 const char* what) {
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), value);
  COMPACT_CHECK(at != sorted.end() && *at == value, where, ": has ", what, " ", value,
                ", which the graphs that the model was trained on do not have");
  return at - sorted.begin();
}

}  // namespace

void StatedGraph::add_attributes(FieldLines& lines, int64_t& count) {
  int64_t here = 0;
  for (; lines.more(); ++here) attributes.push_back(lines.real("an attribute"));
  if (count == kUnknown) count = here;
  COMPACT_CHECK(here == count, lines.where(), ": nodes must have ", count,
                " attributes as the first has, this has ", here);
}

GraphSet build_graph_set(std::vector<StatedGraph> stated, bool with_tags, int64_t attributes,
                         const std::string& where, const GraphValues* known) {
  std::vector<int64_t> tags, labels;
  int64_t nodes = 0;
  for (const StatedGraph& graph : stated) {
    labels.push_back(graph.label);
    tags.insert(tags.end(), graph.tags.begin(), graph.tags.end());
    nodes += static_cast<int64_t>(graph.tags.size());
  }
  make_distinct(tags);
  make_distinct(labels);
  if (!with_tags) tags.clear();
  if (known) {
    tags = known->tags;
    labels = known->labels;
    COMPACT_CHECK(with_tags == !tags.empty(), where, ": has ", with_tags ? "" : "no ",
                  "tags of nodes, the graphs that the model was trained on ",
                  with_tags ? "have none" : "have some");
  }

  const int64_t columns = with_tags ? static_cast<int64_t>(tags.size()) : 0;
  GraphSet set;
  set.classes = static_cast<int64_t>(labels.size());
  set.features = columns + attributes;
  COMPACT_CHECK(set.features <= kMostFeatures / nodes, where, ": must have at most ", kMostFeatures,
                " values of features, ", nodes, " nodes have ", set.features, " each");
  set.graphs.reserve(stated.size());
  for (StatedGraph& graph : stated) {
    const auto size = static_cast<int64_t>(graph.tags.size());
    LabelledGraph out{at::zeros({size, set.features}, at::kFloat), graph.edges.tensor(),
                      place_in(labels, graph.label, where, "a graph of class")};
    auto* row = out.features.data_ptr<float>();
    for (int64_t v = 0; v < size; ++v, row += set.features) {
      if (with_tags) row[place_in(tags, graph.tags[v], where, "a node of tag")] = 1;
      std::copy_n(graph.attributes.begin() + v * attributes, attributes, row + columns);
    }
    set.graphs.push_back(std::move(out));
    graph = {};
  }
  set.values = {std::move(labels), std::move(tags)};
  return set;
}

GraphSet read_graph_set(const std::string& path, const GraphValues* known) {
  return is_folder(path) ? read_graph_set_folder(path, known) : read_graph_set_file(path, known);
}

}  // namespace compact
