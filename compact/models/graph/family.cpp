// SPDX-License-Identifier: Apache-2.0
// config.json of graph networks is a form of this program's own.
#include "compact/base/check.h"
#include "compact/base/named.h"
#include "compact/models/config_rows.h"
#include "compact/models/family_model.h"
#include "compact/models/graph/graph_network.h"
#include "compact/models/labels.h"

namespace compact {
namespace {

constexpr const char *kNodeType = "compact-node-classifier",
                     *kGraphType = "compact-graph-classifier";

std::string layer_name(GraphLayerKind kind) {
  for (const GraphNetInfo& g : graph_networks()) {
    if (g.config.kind == kind) return g.name;
  }
  return "";
}

}  // namespace

void keys_of(ConfigRows& rows, GraphNetConfig& c) {
  constexpr auto kRequired = ConfigRows::kRequired;
  const std::string layer = rows.given.text("layer", rows.reads() ? "" : layer_name(c.kind));
  const std::string where = rows.where() + ": no layer";
  if (rows.reads()) c = named(graph_networks(), layer, where).config;
  rows.put("layer", layer);
  c.whole_graphs = rows.model_type({kNodeType, kGraphType}, c.whole_graphs ? 1 : 0) > 0;
  rows.size("features", c.features, kRequired, 1 << 24);
  rows.size("classes", c.classes, kRequired, kMostLabels);
  rows.size("hidden", c.hidden, kRequired, 1 << 20);
  rows.size("layers", c.layers, kRequired, 1000);
  rows.size("heads", c.heads, kRequired, 1 << 12);
  rows.dropout("dropout", c.dropout);
}

namespace {

class GraphModel final : public FamilyModel<GraphModel, GraphNetConfig, GraphNetwork> {
 public:
  using FamilyModel::FamilyModel;

  ModelShape shape() const override {
    return {.features = c_.features,
            .whole_graphs = c_.whole_graphs,
            .classes = c_.classes,
            .hidden = c_.hidden,
            .layers = c_.layers};
  }

  void fit(const ModelShape& shape) override {
    c_.features = shape.features;
    c_.whole_graphs = shape.whole_graphs;
    c_.classes = shape.classes;
    c_.hidden = shape.hidden;
    c_.layers = shape.layers;
    if (shape.dropout >= 0) c_.dropout = shape.dropout;
  }
};

}  // namespace

extern const FamilyInfo graph_family = {
    .name = "graph",
    .types = {{kNodeType, ModelUse::kNodes}, {kGraphType, ModelUse::kGraphs}},
    .models = models_of<GraphModel>(graph_networks()),
    .read = &GraphModel::read,
};

}  // namespace compact
