// SPDX-License-Identifier: Apache-2.0
// Classification of whole graphs with a graph network.
#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/base/text.h"
#include "compact/data/graphs/graph_dataset.h"
#include "compact/data/samples/split.h"
#include "compact/tasks/graph_task.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/splits.h"

namespace compact {
namespace {

Task open_graph(const TrainConfig& c, const Opening&, std::vector<std::string>& warnings) {
  Task task;
  const auto set = std::make_shared<const GraphSet>(read_graph_set(graph_file_of(c)));
  const ModelShape model = set_graph_model(c, set->features, set->classes, task);
  const uint64_t key = key_of(c, RandomUse::kData);
  const auto number_of = [](const GraphSet& s) { return static_cast<int64_t>(s.graphs.size()); };
  const auto whole = [&](const std::vector<std::string>& files) -> std::unique_ptr<Dataset> {
    if (files.empty()) return nullptr;
    const auto other = std::make_shared<const GraphSet>(read_graph_set(files[0]));
    check_graphs(model, other->features, other->classes, "the samples of " + files[0]);
    return std::make_unique<GraphDataset>(other, all_samples(number_of(*other)), key);
  };
  task.validation = whole(c.validation_file);
  task.test = whole(c.test_file);
  task.unit = "graphs";
  if (c.train_file.empty()) return task;
  task.checksum = path_checksum(graph_file_of(c));
  std::vector<int64_t> by_size;
  const auto part_of_it = [&](std::vector<int64_t> samples, bool training) {
    if (training) by_size = samples;
    return std::make_unique<GraphDataset>(set, std::move(samples), key);
  };
  split_samples(c, number_of(*set), part_of_it, task, warnings);
  // The largest graphs make the largest batch.
  std::ranges::sort(by_size, std::greater{}, [&](int64_t i) {
    const LabelledGraph& g = set->graphs[static_cast<size_t>(i)];
    return g.features.size(0) + g.edges.size(1);
  });
  task.inputs = [largest = std::make_shared<GraphDataset>(set, by_size, key)](
                    const TrainConfig&, at::Device device, int64_t batch) {
    return inputs_like(largest->in_order(0, std::min(batch, largest->size())), device);
  };
  task.data_text = cat(format_count(task.train->size()), " graphs of up to ",
                       set->graphs[static_cast<size_t>(by_size[0])].features.size(0), " nodes",
                       held_out_text(task));
  return task;
}

}  // namespace

extern const TaskInfo graph_classification = {
    .name = "graph-classification",
    .summary = "classes of whole graphs, by a graph network",
    .check = check_graph_settings,
    .open = open_graph,
    .use = ModelUse::kGraphs,
    .compared = "off,exact,gact-l1",
};

}  // namespace compact
