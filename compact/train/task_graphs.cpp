// SPDX-License-Identifier: Apache-2.0
// Classes of a graph's nodes, or of whole graphs, by a graph network.
#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/base/text.h"
#include "compact/data/graph_dataset.h"
#include "compact/io/checksum.h"
#include "compact/io/json_file.h"
#include "compact/models/graph_network.h"
#include "compact/train/setup.h"
#include "compact/train/task.h"

namespace compact {
namespace {

using nlohmann::json;

constexpr const char *kNodes = "compact-node-classifier", *kGraphs = "compact-graph-classifier";

// The network of a name, in the widths asked for; or that of a folder.
GraphNetConfig net_of(const TrainConfig& c, bool whole_graphs) {
  GraphNetConfig net;
  if (!c.model.empty()) {
    net = graph_network_named(c.model).config;
    if (c.hidden_size > 0) net.hidden = c.hidden_size;
    if (c.num_hidden_layers > 0) net.layers = c.num_hidden_layers;
    if (c.dropout >= 0) net.dropout = c.dropout;
    net.whole_graphs = whole_graphs;
    return net;
  }
  const std::filesystem::path path = std::filesystem::path(c.model_name_or_path) / "config.json";
  const json j = read_json(path);
  try {
    COMPACT_CHECK(j.at("model_type") == (whole_graphs ? kGraphs : kNodes), path.string(),
                  ": model_type must be ", whole_graphs ? kGraphs : kNodes, ", is ",
                  j.at("model_type").dump());
    net = graph_network_named(j.at("layer").get<std::string>()).config;
    j.at("features").get_to(net.features);
    j.at("classes").get_to(net.classes);
    j.at("hidden").get_to(net.hidden);
    j.at("layers").get_to(net.layers);
    j.at("heads").get_to(net.heads);
    j.at("dropout").get_to(net.dropout);
  } catch (const json::exception& e) {
    fail(path.string(), ": not a model of this program: ", e.what());
  }
  net.whole_graphs = whole_graphs;
  return net;
}

std::string layer_name(GraphLayerKind kind) {
  for (const GraphNetInfo& g : graph_networks()) {
    if (g.config.kind == kind) return g.name;
  }
  return "";
}

void set_network(const TrainConfig& c, const GraphNetConfig& net, Task& task) {
  task.config = {{"model_type", net.whole_graphs ? kGraphs : kNodes},
                 {"layer", layer_name(net.kind)},
                 {"features", net.features},
                 {"classes", net.classes},
                 {"hidden", net.hidden},
                 {"layers", net.layers},
                 {"heads", net.heads},
                 {"dropout", net.dropout}};
  task.network_text = cat(net.classes, " classes, hidden ", net.hidden);
  const ClassifierOptions options{.dtype = dtype_of(c.dtype),
                                  .seed = key_of(c, RandomUse::kWeights),
                                  .label_smoothing = c.label_smoothing_factor};
  task.network = [net, options](const Policy& policy, at::Device device) {
    ClassifierOptions here = options;
    here.device = device;
    return std::make_unique<GraphNetwork>(net, policy, here);
  };
}

// Sizes of a batch's tensors on a device.
StepInputs like(const Batch& batch, at::Device device) {
  const auto of = [&](const at::Tensor& t) {
    return at::zeros(t.sizes(), t.options().device(device));
  };
  StepInputs inputs{{of(batch.input)}, of(batch.target)};
  for (const at::Tensor& t : batch.more) inputs.inputs.push_back(of(t));
  return inputs;
}

uint64_t checksum_of(const std::string& path) {
  return std::stoull(digest_file(path).xxh3, nullptr, 16);
}

void check_common(const TrainConfig& c) {
  if (!c.model.empty()) graph_network_named(c.model);
  COMPACT_CHECK(c.train_file.size() <= 1 && c.validation_file.size() <= 1,
                "--train_file: graphs come in one file");
  COMPACT_CHECK(c.dropout < 1, "--dropout must be below 1, is ", c.dropout);
}

void check_nodes(const TrainConfig& c) {
  check_common(c);
  COMPACT_CHECK(c.test_file.empty(), "--test_file: the nodes of a graph are split");
}

const std::string& file_of(const TrainConfig& c) {
  const auto& files = c.train_file.empty() ? c.validation_file : c.train_file;
  COMPACT_CHECK(!files.empty(), "--train_file is needed: the graph decides what a step takes");
  return files[0];
}

uint64_t split_seed_of(const TrainConfig& c) {
  if (!c.model.empty()) return static_cast<uint64_t>(c.seed);
  const std::filesystem::path path = std::filesystem::path(c.model_name_or_path) / "config.json";
  const json j = read_json(path);
  COMPACT_CHECK(j.contains("split_seed") && j["split_seed"].is_number_unsigned(), path.string(),
                ": split_seed must be a number");
  return j["split_seed"];
}

Task open_nodes(const TrainConfig& c, const Progress&, std::vector<std::string>&) {
  Task task;
  const std::string& file = file_of(c);
  Graph graph = read_graph_npz(file);
  graph.features = normalize_rows(graph.features);
  GraphNetConfig net = net_of(c, false);
  if (!c.model.empty()) {
    net.features = graph.features.size(1);
    net.classes = graph.classes;
  }
  COMPACT_CHECK(net.features == graph.features.size(1) && net.classes >= graph.classes, file,
                ": nodes have ", graph.features.size(1), " features and ", graph.classes,
                " classes, the model ", net.features, " and ", net.classes);
  // Kept with the model, so that `compact eval` sees no node that was trained on.
  const uint64_t split_seed = split_seed_of(c);
  const NodeSplit split = planetoid_split(graph, split_seed);
  const uint64_t key = key_of(c, RandomUse::kData);
  task.train = std::make_unique<NodeDataset>(graph, split.train, key);
  task.validation = std::make_unique<NodeDataset>(graph, split.validation, key);
  task.test = std::make_unique<NodeDataset>(graph, split.test, key);
  if (c.train_file.empty()) task.validation = std::move(task.test);
  task.checksum = checksum_of(file);
  task.unit = "nodes";
  task.resident = true;
  task.units = graph.features.size(0);
  task.data_text = cat("a graph of ", format_count(task.units), " nodes, ",
                       format_count(graph.edges.size(1) / 2), " edges; ", split.train.numel(),
                       " nodes to train on, validation ", split.validation.numel(), ", test ",
                       split.test.numel());
  set_network(c, net, task);
  task.config["split_seed"] = split_seed;
  task.inputs = [batch = task.validation->in_order(0, 1)](at::Device device, int64_t) {
    return like(batch, device);
  };
  return task;
}

Task open_graphs(const TrainConfig& c, const Progress&, std::vector<std::string>&) {
  Task task;
  const auto set = std::make_shared<const GraphSet>(read_graph_set(file_of(c)));
  GraphNetConfig net = net_of(c, true);
  if (!c.model.empty()) {
    net.features = set->features;
    net.classes = set->classes;
  }
  COMPACT_CHECK(net.features == set->features && net.classes >= set->classes, file_of(c),
                ": graphs have ", set->features, " features and ", set->classes,
                " classes, the model ", net.features, " and ", net.classes);
  const uint64_t key = key_of(c, RandomUse::kData);
  const auto whole = [&](const std::vector<std::string>& files) -> std::unique_ptr<Dataset> {
    if (files.empty()) return nullptr;
    const auto other = std::make_shared<const GraphSet>(read_graph_set(files[0]));
    COMPACT_CHECK(other->features == net.features && other->classes <= net.classes, files[0],
                  ": graphs have ", other->features, " features and ", other->classes,
                  " classes, the model ", net.features, " and ", net.classes);
    std::vector<int64_t> all(other->graphs.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    return std::make_unique<GraphDataset>(other, all, key);
  };
  task.validation = whole(c.validation_file);
  task.test = whole(c.test_file);
  task.unit = "graphs";
  set_network(c, net, task);
  if (c.train_file.empty()) return task;
  task.checksum = std::filesystem::is_directory(file_of(c)) ? 0 : checksum_of(file_of(c));
  const auto count = static_cast<int64_t>(set->graphs.size());
  const auto held_out = static_cast<int64_t>(
      c.validation_file.empty() ? c.validation_split * static_cast<double>(count) : 0);
  const Permutation order(static_cast<uint64_t>(count), derive(key, 1));
  std::vector<int64_t> train, rest;
  for (int64_t i = 0; i < count; ++i) {
    (i < count - held_out ? train : rest)
        .push_back(static_cast<int64_t>(order(static_cast<uint64_t>(i))));
  }
  if (!rest.empty()) task.validation = std::make_unique<GraphDataset>(set, rest, key);
  // The largest graphs, the most that a batch can be.
  std::vector<int64_t> by_size = train;
  std::ranges::sort(by_size, std::greater{}, [&](int64_t i) {
    const LabelledGraph& g = set->graphs[static_cast<size_t>(i)];
    return g.features.size(0) + g.edges.size(1);
  });
  task.inputs = [largest = std::make_shared<GraphDataset>(set, by_size, key)](at::Device device,
                                                                              int64_t batch) {
    return like(largest->in_order(0, std::min(batch, largest->size())), device);
  };
  task.train = std::make_unique<GraphDataset>(set, train, key);
  task.data_text = cat(format_count(task.train->size()), " graphs of up to ",
                       set->graphs[static_cast<size_t>(by_size[0])].features.size(0), " nodes",
                       task.validation ? cat(", validation ", task.validation->size()) : "",
                       task.test ? cat(", test ", task.test->size()) : "");
  return task;
}

}  // namespace

extern const TaskInfo node_classification = {"node-classification",
                                             "classes of the nodes of a graph, by a graph network",
                                             check_nodes,
                                             open_nodes,
                                             {kNodes},
                                             /*one_sample=*/true};
extern const TaskInfo graph_classification = {"graph-classification",
                                              "classes of whole graphs, by a graph network",
                                              check_common,
                                              open_graphs,
                                              {kGraphs}};

}  // namespace compact
