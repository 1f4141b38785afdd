// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/graph_task.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/io/checksum.h"
#include "compact/io/json_file.h"
#include "compact/tasks/classifier_task.h"
#include "compact/tasks/setup.h"

namespace compact {
namespace {

using nlohmann::json;

std::string layer_name(GraphLayerKind kind) {
  for (const GraphNetInfo& g : graph_networks()) {
    if (g.config.kind == kind) return g.name;
  }
  return "";
}

}  // namespace

void check_graph_net(const GraphNetConfig& net, int64_t features, int64_t classes,
                     const std::string& what) {
  COMPACT_CHECK(net.features == features && net.classes >= classes, what, " have ", features,
                " features and ", classes, " classes, the model ", net.features, " and ",
                net.classes);
}

GraphNetConfig graph_net_of(const TrainConfig& c, const std::string& model_type, int64_t features,
                            int64_t classes) {
  GraphNetConfig net;
  if (!c.model.empty()) {
    net = graph_network_named(c.model).config;
    if (c.hidden_size > 0) net.hidden = c.hidden_size;
    if (c.num_hidden_layers > 0) net.layers = c.num_hidden_layers;
    if (c.dropout >= 0) net.dropout = c.dropout;
    net.features = features;
    net.classes = classes;
    return net;
  }
  const std::filesystem::path path = std::filesystem::path(c.model_name_or_path) / "config.json";
  const json j = read_json(path);
  try {
    COMPACT_CHECK(j.at("model_type") == model_type, path.string(), ": model_type must be ",
                  model_type, ", is ", j.at("model_type").dump());
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
  check_graph_net(net, features, classes, "the samples of " + graph_file_of(c));
  return net;
}

void set_graph_net(const GraphNetConfig& net, const std::string& model_type, Task& task) {
  task.config = {{"model_type", model_type}, {"layer", layer_name(net.kind)},
                 {"features", net.features}, {"classes", net.classes},
                 {"hidden", net.hidden},     {"layers", net.layers},
                 {"heads", net.heads},       {"dropout", net.dropout}};
  task.network_text = cat(net.classes, " classes, hidden ", net.hidden);
  task.network = classifier_of<GraphNetwork>(net);
}

StepInputs inputs_like(const Batch& batch, at::Device device) {
  const auto of = [&](const at::Tensor& t) {
    return at::zeros(t.sizes(), t.options().device(device));
  };
  StepInputs inputs{{of(batch.input)}, of(batch.target)};
  for (const at::Tensor& t : batch.more) inputs.inputs.push_back(of(t));
  return inputs;
}

uint64_t path_checksum(const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<std::string> files = {path};
  if (fs::is_directory(path)) {
    files.clear();
    for (const fs::directory_entry& e : fs::directory_iterator(path)) {
      if (e.is_regular_file()) files.push_back(e.path().string());
    }
    std::ranges::sort(files);
  }
  std::string digests;
  for (const std::string& f : files) digests += digest_file(f).xxh3;
  return std::stoull(files.size() == 1 ? digests : xxh3(digests), nullptr, 16);
}

void check_graph_settings(const TrainConfig& c) {
  if (!c.model.empty()) graph_network_named(c.model);
  COMPACT_CHECK(c.train_file.size() <= 1 && c.validation_file.size() <= 1,
                "--train_file: graphs come in one file");
}

const std::string& graph_file_of(const TrainConfig& c) {
  const auto& files = c.train_file.empty() ? c.validation_file : c.train_file;
  COMPACT_CHECK(!files.empty(), "--train_file is needed: the graph decides what a step takes");
  return files[0];
}

}  // namespace compact
