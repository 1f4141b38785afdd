// SPDX-License-Identifier: Apache-2.0
// Graphs as batches: one whole graph whose nodes have targets, or several graphs at a time.
#pragma once

#include <memory>
#include <vector>

#include "compact/data/graphs/graph.h"
#include "compact/data/graphs/graph_set.h"
#include "compact/data/samples/dataset.h"

namespace compact {

// Each row divided by its sum; a row of zeros stays.
at::Tensor normalize_rows(const at::Tensor& features);

// One sample, the whole graph: input f32 [nodes, features], target int64 [nodes], -100 but at
// `nodes`; more: edges. A batch of several is the same graph.
class NodeDataset final : public Dataset {
 public:
  NodeDataset(const Graph& graph, const at::Tensor& nodes, uint64_t seed);

 private:
  Batch collect(std::span<const Sample> samples) const override;
  Batch batch_;
};

// Input f32 [nodes of the batch, features], target int64 [graphs]; more: edges, the graph of every
// node int64 [nodes], the nodes of every graph f32 [graphs, 1].
class GraphDataset final : public Dataset {
 public:
  // The graphs whose numbers are in `chosen`. Throws InputError where there are none.
  GraphDataset(std::shared_ptr<const GraphSet> graphs, std::vector<int64_t> chosen, uint64_t seed);

 private:
  Batch collect(std::span<const Sample> samples) const override;
  std::shared_ptr<const GraphSet> graphs_;
  std::vector<int64_t> chosen_;
};

}  // namespace compact
