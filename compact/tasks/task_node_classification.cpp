// SPDX-License-Identifier: Apache-2.0
// Classification of a graph's nodes with a graph network.
#include <filesystem>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/graphs/graph_dataset.h"
#include "compact/io/json_file.h"
#include "compact/tasks/graph_task.h"
#include "compact/tasks/setup.h"

namespace compact {
namespace {

void check_node(const TrainConfig& c) {
  check_graph_settings(c);
  COMPACT_CHECK(c.test_file.empty(), "--test_file: the nodes of a graph are split");
  COMPACT_CHECK(c.train_file.empty() || c.validation_file.empty(),
                "--validation_file: the nodes of the graph of --train_file are split");
}

uint64_t split_seed_of(const TrainConfig& c) {
  if (!c.model.empty()) return static_cast<uint64_t>(c.seed);
  const std::filesystem::path path = std::filesystem::path(c.model_name_or_path) / "config.json";
  const nlohmann::json j = read_json(path);
  COMPACT_CHECK(j.contains("split_seed") && j["split_seed"].is_number_unsigned(), path.string(),
                ": split_seed must be a number");
  return j["split_seed"];
}

Task open_node(const TrainConfig& c, const Opening&, std::vector<std::string>& warnings) {
  Task task;
  const std::string& file = graph_file_of(c);
  Graph graph = read_graph_npz(file);
  graph.features = normalize_rows(graph.features);
  set_graph_model(c, graph.features.size(1), graph.classes, task, warnings);
  // Written beside the model, so that `compact eval` scores no node that was trained on.
  const uint64_t split_seed = split_seed_of(c);
  const NodeSplit split = planetoid_split(graph, split_seed);
  const uint64_t key = key_of(c, RandomUse::kData);
  task.train = std::make_unique<NodeDataset>(graph, split.train, key);
  task.validation = std::make_unique<NodeDataset>(graph, split.validation, key);
  task.test = std::make_unique<NodeDataset>(graph, split.test, key);
  if (c.train_file.empty()) task.validation = std::move(task.test);
  task.checksum = path_checksum(file);
  task.unit = "nodes";
  task.resident = true;
  task.units = graph.features.size(0);
  task.data_text = cat("a graph of ", format_count(task.units), " nodes, ",
                       format_count(graph.edges.size(1) / 2), " edges; ", split.train.numel(),
                       " nodes to train on, validation ", split.validation.numel(), ", test ",
                       split.test.numel());
  task.config["split_seed"] = split_seed;
  task.inputs = [batch = task.validation->in_order(0, 1)](const TrainConfig&, at::Device device,
                                                          int64_t) {
    return inputs_like(batch, device);
  };
  return task;
}

}  // namespace

extern const TaskInfo node_classification = {
    .name = "node-classification",
    .summary = "classes of the nodes of a graph, by a graph network",
    .check = check_node,
    .open = open_node,
    .use = ModelUse::kNodes,
    .one_sample = true,
    .compared = "off,exact,gact-l1",
};

}  // namespace compact
