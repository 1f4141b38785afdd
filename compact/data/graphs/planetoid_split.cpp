// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "compact/base/check.h"
#include "compact/data/graphs/graph.h"
#include "compact/data/samples/permutation.h"

namespace compact {
namespace {

const uint64_t kSplitKey = label_of("planetoid_split", 15);

at::Tensor ascending(std::vector<int64_t> nodes) {
  std::sort(nodes.begin(), nodes.end());
  return at::tensor(nodes, at::kLong);
}

}  // namespace

NodeSplit planetoid_split(const Graph& graph, uint64_t seed, int64_t per_class, int64_t validation,
                          int64_t test) {
  COMPACT_CHECK(graph.labels.defined() && graph.labels.dim() == 1 && graph.labels.numel() > 0 &&
                    graph.labels.scalar_type() == at::kLong,
                "[split] labels must be int64 [nodes]");
  for (const int64_t count : {per_class, validation, test}) {
    COMPACT_CHECK(count >= 1, "[split] parts must have at least 1 node, one has ", count);
  }
  const at::Tensor all = graph.labels.contiguous();
  const auto* const label = all.data_ptr<int64_t>();
  const int64_t nodes = all.numel();
  std::vector<int64_t> missing(graph.classes, per_class), train, others;
  const Permutation order(nodes, derive(seed, kSplitKey));
  for (int64_t i = 0; i < nodes; ++i) {
    const auto node = static_cast<int64_t>(order(i));
    COMPACT_CHECK(label[node] >= 0 && label[node] < graph.classes,
                  "[split] labels must be from 0 to ", graph.classes - 1, ", that of node ", node,
                  " is ", label[node]);
    if (missing[label[node]] > 0) {
      --missing[label[node]];
      train.push_back(node);
    } else {
      others.push_back(node);
    }
  }
  for (int64_t c = 0; c < graph.classes; ++c) {
    COMPACT_CHECK(missing[c] == 0, "[split] every class must have at least ", per_class,
                  " nodes, class ", c, " has ", per_class - missing[c]);
  }
  const auto left = static_cast<int64_t>(others.size());
  COMPACT_CHECK(validation <= left && test <= left - validation, "[split] ", validation,
                " nodes to validate and ", test,
                " to test are wanted, beside those to train there are ", left);
  const auto middle = others.begin() + validation;
  return {ascending(train), ascending({others.begin(), middle}),
          ascending({middle, middle + test})};
}

}  // namespace compact
