// SPDX-License-Identifier: Apache-2.0
// Graph networks: GCN (Kipf and Welling 2017), GAT (Velickovic et al. 2018), GraphSAGE with means
// (Hamilton et al. 2017), as classifiers of nodes or, by the mean over their nodes, of graphs.
// Plain operations: what they save goes through a SavedTensorScope.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compact/models/classifier.h"
#include "compact/ops/functions/graph_attention.h"

namespace compact {

class ConfigRows;

enum class GraphLayerKind : uint8_t { kConvolution, kAttention, kSample };

struct GraphNetConfig {
  GraphLayerKind kind = GraphLayerKind::kConvolution;
  int64_t features = 1, classes = 2;
  int64_t hidden = 16;  // of every layer but the last; of attention, of each head
  int64_t layers = 2;
  int64_t heads = 1;  // of attention; the last layer of a node classifier has one
  double dropout = 0.5;
  bool whole_graphs = false;  // a class for each graph of a batch, not for each node
  bool operator==(const GraphNetConfig&) const = default;
};
void keys_of(ConfigRows& rows, GraphNetConfig& c);  // see config_rows.h

struct GraphNetInfo {
  std::string name, summary;
  GraphNetConfig config;
};
std::span<const GraphNetInfo> graph_networks();

class GraphNetwork final : public Classifier {
 public:
  // Matrices as Glorot and Bengio (2010), biases 0.
  GraphNetwork(const GraphNetConfig& config, const Policy& policy = {},
               const NetworkOptions& options = {});
  GraphNetwork(const GraphNetwork&) = delete;

  // Inputs: features f32 [nodes, features]; edges int64 [2, edges], both directions, ascending, no
  // node with itself; of whole graphs also the graph of every node, int64 [nodes], and their sizes,
  // f32 [graphs, 1]. Gives [nodes or graphs, classes].
  at::Tensor logits(const Tensors& inputs, const Pass& pass,
                    SegmentReport* report = nullptr) const override;

  const GraphNetConfig& config() const { return config_; }
  std::vector<std::pair<std::string, at::Tensor>> named_tensors() const override;
  bool divisible() const override { return false; }

 private:
  struct Layer {
    std::string name;
    int64_t heads = 1, width = 0;  // output: heads * width
    const Parameter *weight = nullptr, *bias = nullptr;
    // GraphSAGE: of the node itself; attention: source and target.
    const Parameter *second = nullptr, *third = nullptr;
  };
  at::Tensor attention(const Layer& l, const at::Tensor& x,
                       const std::shared_ptr<const AttentionGraph>& graph, double dropout,
                       DropoutKeys& keys) const;

  GraphNetConfig config_;
  std::vector<Layer> layers_;
  const Parameter *head_ = nullptr, *head_bias_ = nullptr;  // of whole graphs
};

}  // namespace compact
