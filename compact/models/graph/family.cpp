// SPDX-License-Identifier: Apache-2.0
// config.json of graph networks is a form of this program's own.
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/named.h"
#include "compact/io/config_keys.h"
#include "compact/models/families.h"
#include "compact/models/graph/graph_network.h"

namespace compact {
namespace {

using nlohmann::json;

constexpr const char *kNodeType = "compact-node-classifier",
                     *kGraphType = "compact-graph-classifier";

std::string layer_name(GraphLayerKind kind) {
  for (const GraphNetInfo& g : graph_networks()) {
    if (g.config.kind == kind) return g.name;
  }
  return "";
}

class GraphModel final : public ModelConfig {
 public:
  explicit GraphModel(GraphNetConfig net) : net_(net) {}
  explicit GraphModel(const ConfigKeys& keys);
  std::unique_ptr<ModelConfig> clone() const override { return std::make_unique<GraphModel>(net_); }

  ModelShape shape() const override {
    return {.features = net_.features,
            .whole_graphs = net_.whole_graphs,
            .classes = net_.classes,
            .hidden = net_.hidden,
            .layers = net_.layers};
  }

  void fit(const ModelShape& shape) override {
    net_.features = shape.features;
    net_.whole_graphs = shape.whole_graphs;
    net_.classes = shape.classes;
    net_.hidden = shape.hidden;
    net_.layers = shape.layers;
    if (shape.dropout >= 0) net_.dropout = shape.dropout;
  }

  json to_json(const std::string&) const override {
    return {{"model_type", net_.whole_graphs ? kGraphType : kNodeType},
            {"layer", layer_name(net_.kind)},
            {"features", net_.features},
            {"classes", net_.classes},
            {"hidden", net_.hidden},
            {"layers", net_.layers},
            {"heads", net_.heads},
            {"dropout", net_.dropout}};
  }
  std::unique_ptr<Network> build(const Policy& policy,
                                 const NetworkOptions& options) const override {
    return std::make_unique<GraphNetwork>(net_, policy, options);
  }

 private:
  GraphNetConfig net_;
};

GraphModel::GraphModel(const ConfigKeys& keys) {
  const std::string& where = keys.where();
  net_ = named(graph_networks(), keys.text("layer", ""), where + ": no layer").config;
  net_.features = keys.required_integer("features");
  net_.classes = keys.required_integer("classes");
  net_.hidden = keys.required_integer("hidden");
  net_.layers = keys.required_integer("layers");
  net_.heads = keys.required_integer("heads");
  net_.dropout = keys.number("dropout", net_.dropout);
  net_.whole_graphs = keys.text("model_type", "") == kGraphType;
  const auto within = [&](const char* name, int64_t value, int64_t most) {
    COMPACT_CHECK(value >= 1 && value <= most, where, ": ", name, " must be from 1 to ", most,
                  ", is ", value);
  };
  within("features", net_.features, 1 << 24);
  within("classes", net_.classes, 1 << 20);
  within("hidden", net_.hidden, 1 << 20);
  within("layers", net_.layers, 1000);
  within("heads", net_.heads, 1 << 12);
  COMPACT_CHECK(net_.dropout >= 0 && net_.dropout < 1, where,
                ": dropout must be at least 0 and below 1, is ", net_.dropout);
}

}  // namespace

extern const FamilyInfo graph_family = {
    .name = "graph",
    .types = {{kNodeType, ModelUse::kNodes}, {kGraphType, ModelUse::kGraphs}},
    .models = models_of<GraphModel>(graph_networks()),
    .read = [](const json& config, std::string_view where) -> std::unique_ptr<ModelConfig> {
      return std::make_unique<GraphModel>(ConfigKeys(config, std::string(where)));
    },
};

}  // namespace compact
