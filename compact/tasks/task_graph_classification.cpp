// SPDX-License-Identifier: Apache-2.0
// Classes of whole graphs, by a graph network.
#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/base/text.h"
#include "compact/data/graphs/graph_dataset.h"
#include "compact/data/samples/split.h"
#include "compact/tasks/graph_task.h"
#include "compact/tasks/setup.h"

namespace compact {
namespace {

constexpr const char* kGraphModelType = "compact-graph-classifier";

Task open_graph(const TrainConfig& c, const Progress&, std::vector<std::string>&) {
  Task task;
  const auto set = std::make_shared<const GraphSet>(read_graph_set(graph_file_of(c)));
  GraphNetConfig net = graph_net_of(c, kGraphModelType, set->features, set->classes);
  net.whole_graphs = true;
  const uint64_t key = key_of(c, RandomUse::kData);
  const auto number_of = [](const GraphSet& s) { return static_cast<int64_t>(s.graphs.size()); };
  const auto whole = [&](const std::vector<std::string>& files) -> std::unique_ptr<Dataset> {
    if (files.empty()) return nullptr;
    const auto other = std::make_shared<const GraphSet>(read_graph_set(files[0]));
    check_graph_net(net, other->features, other->classes, "the samples of " + files[0]);
    return std::make_unique<GraphDataset>(other, all_samples(number_of(*other)), key);
  };
  task.validation = whole(c.validation_file);
  task.test = whole(c.test_file);
  task.unit = "graphs";
  set_graph_net(c, net, kGraphModelType, task);
  if (c.train_file.empty()) return task;
  task.checksum = path_checksum(graph_file_of(c));
  const double part = c.validation_file.empty() ? c.validation_split : 0;
  const SampleSplit split = drawn_split(number_of(*set), part, derive(key, 1));
  if (!split.held_out.empty()) {
    task.validation = std::make_unique<GraphDataset>(set, split.held_out, key);
  }
  // The largest graphs, the most that a batch can be.
  std::vector<int64_t> by_size = split.train;
  std::ranges::sort(by_size, std::greater{}, [&](int64_t i) {
    const LabelledGraph& g = set->graphs[static_cast<size_t>(i)];
    return g.features.size(0) + g.edges.size(1);
  });
  task.inputs = [largest = std::make_shared<GraphDataset>(set, by_size, key)](at::Device device,
                                                                              int64_t batch) {
    return inputs_like(largest->in_order(0, std::min(batch, largest->size())), device);
  };
  task.train = std::make_unique<GraphDataset>(set, split.train, key);
  task.data_text = cat(format_count(task.train->size()), " graphs of up to ",
                       set->graphs[static_cast<size_t>(by_size[0])].features.size(0), " nodes",
                       task.validation ? cat(", validation ", task.validation->size()) : "",
                       task.test ? cat(", test ", task.test->size()) : "");
  return task;
}

}  // namespace

extern const TaskInfo graph_classification = {
    .name = "graph-classification",
    .summary = "classes of whole graphs, by a graph network",
    .check = check_graph_settings,
    .open = open_graph,
    .model_types = {kGraphModelType},
    .compared = "off,exact,gact-l1",
};

}  // namespace compact
