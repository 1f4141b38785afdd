// SPDX-License-Identifier: Apache-2.0
// Classification of whole graphs with a graph network.
#include <algorithm>
#include <optional>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/base/text.h"
#include "compact/data/graphs/graph_dataset.h"
#include "compact/data/samples/split.h"
#include "compact/io/json_file.h"
#include "compact/tasks/graph_task.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/splits.h"

namespace compact {
namespace {

constexpr const char *kLabels = "graph_labels", *kTags = "node_tags";

// The values that the graphs of a model's folder had; none: it does not say.
std::optional<GraphValues> values_of_folder(const TrainConfig& c,
                                            std::vector<std::string>& warnings) {
  if (c.model_name_or_path.empty()) return {};
  const std::string path = c.model_name_or_path + "/config.json";
  const nlohmann::json j = read_json(path);
  if (!j.contains(kLabels) && !j.contains(kTags)) {
    warnings.push_back(cat(path, " does not say which classes and tags its graphs had: they are ",
                           "numbered as ", graph_file_of(c), " has them"));
    return {};
  }
  const auto values = [&](const char* key) {
    const auto found = j.find(key);
    const auto whole = [](const nlohmann::json& v) { return v.is_number_integer(); };
    COMPACT_CHECK(found != j.end() && found->is_array() && std::ranges::all_of(*found, whole) &&
                      std::ranges::is_sorted(found->get<std::vector<int64_t>>()),
                  path, ": ", key, " must be a list of integers, ascending");
    return found->get<std::vector<int64_t>>();
  };
  return GraphValues{values(kLabels), values(kTags)};
}

Task open_graph(const TrainConfig& c, const Opening&, std::vector<std::string>& warnings) {
  Task task;
  const std::optional<GraphValues> known = values_of_folder(c, warnings);
  const auto set =
      std::make_shared<const GraphSet>(read_graph_set(graph_file_of(c), known ? &*known : nullptr));
  const ModelShape model = set_graph_model(c, set->features, set->classes, task, warnings);
  const uint64_t key = key_of(c, RandomUse::kData);
  const auto number_of = [](const GraphSet& s) { return static_cast<int64_t>(s.graphs.size()); };
  const auto whole = [&](const std::vector<std::string>& files) -> std::unique_ptr<Dataset> {
    if (files.empty()) return nullptr;
    const auto other = std::make_shared<const GraphSet>(read_graph_set(files[0], &set->values));
    check_graphs(model, other->features, other->classes, "the samples of " + files[0]);
    return std::make_unique<GraphDataset>(other, all_samples(number_of(*other)), key);
  };
  task.validation = whole(c.validation_file);
  task.test = whole(c.test_file);
  task.unit = "graphs";
  task.config[kLabels] = set->values.labels;
  task.config[kTags] = set->values.tags;
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
