// SPDX-License-Identifier: Apache-2.0
#include "compact/data/graphs/graph_dataset.h"

#include <ATen/ATen.h>

#include "compact/base/check.h"

namespace compact {

at::Tensor normalize_rows(const at::Tensor& features) {
  const at::Tensor sums = features.abs().sum(1, true);
  return features / at::where(sums.eq(0), at::ones_like(sums), sums);
}

NodeDataset::NodeDataset(const Graph& graph, const at::Tensor& nodes, uint64_t seed) {
  at::Tensor target = at::full_like(graph.labels, -100);
  target.index_copy_(0, nodes, graph.labels.index_select(0, nodes));
  batch_ = {graph.features, target, {graph.edges}};
  begin(1, seed);
}

Batch NodeDataset::collect(std::span<const Sample>) const { return batch_; }

GraphDataset::GraphDataset(std::shared_ptr<const GraphSet> graphs, std::vector<int64_t> chosen,
                           uint64_t seed)
    : graphs_(std::move(graphs)), chosen_(std::move(chosen)) {
  COMPACT_CHECK(!chosen_.empty(), "[graphs] no graphs");
  begin(static_cast<int64_t>(chosen_.size()), seed);
}

Batch GraphDataset::collect(std::span<const Sample> samples) const {
  std::vector<at::Tensor> features, edges;
  std::vector<int64_t> labels, counts;
  int64_t nodes = 0;
  for (const Sample& sample : samples) {
    const LabelledGraph& g = graphs_->graphs[static_cast<size_t>(chosen_[sample.number])];
    features.push_back(g.features);
    edges.push_back(g.edges + nodes);
    labels.push_back(g.label);
    counts.push_back(g.features.size(0));
    nodes += counts.back();
  }
  const at::Tensor sizes = at::tensor(counts, at::kLong);
  return {at::cat(features),
          at::tensor(labels, at::kLong),
          {at::cat(edges, 1), at::repeat_interleave(sizes), sizes.to(at::kFloat).unsqueeze(1)}};
}

}  // namespace compact
