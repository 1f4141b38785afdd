// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/graph_task.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/io/checksum.h"
#include "compact/tasks/task_model.h"

namespace compact {

void check_graphs(const ModelShape& model, int64_t features, int64_t classes,
                  const std::string& what) {
  COMPACT_CHECK(model.features == features && model.classes >= classes, what, " have ", features,
                " features and ", classes, " classes, the model ", model.features, " and ",
                model.classes);
}

ModelShape set_graph_model(const TrainConfig& c, int64_t features, int64_t classes, Task& task,
                           std::vector<std::string>& warnings) {
  const std::unique_ptr<ModelConfig> model = model_of(c);
  ModelShape shape = model->shape();
  if (c.model.empty()) {
    check_graphs(shape, features, classes, "the samples of " + graph_file_of(c));
    const auto unread = [&](const char* option, int64_t value) {
      if (value == 0) return;
      warnings.push_back(
          cat(option, " takes no effect: ", c.model_name_or_path, " has sizes of its own"));
    };
    unread("--hidden_size", c.hidden_size);
    unread("--num_hidden_layers", c.num_hidden_layers);
  } else {
    if (c.hidden_size > 0) shape.hidden = c.hidden_size;
    if (c.num_hidden_layers > 0) shape.layers = c.num_hidden_layers;
    shape.features = features;
    shape.classes = classes;
    shape.whole_graphs = task_named(c.task).use == ModelUse::kGraphs;
  }
  shape.dropout = c.dropout;
  model->fit(shape);
  set_model(c, *model, task);
  task.network_text = cat(shape.classes, " classes, hidden ", shape.hidden);
  return shape;
}

StepInputs inputs_like(const Batch& batch, at::Device device) {
  const auto zeros_like = [&](const at::Tensor& t) {
    return at::zeros(t.sizes(), t.options().device(device));
  };
  StepInputs inputs{{zeros_like(batch.input)}, zeros_like(batch.target)};
  for (const at::Tensor& t : batch.more) inputs.inputs.push_back(zeros_like(t));
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
  COMPACT_CHECK(c.train_file.size() <= 1 && c.validation_file.size() <= 1,
                "--train_file: graphs come in one file");
}

const std::string& graph_file_of(const TrainConfig& c) {
  const auto& files = c.train_file.empty() ? c.validation_file : c.train_file;
  COMPACT_CHECK(!files.empty(), "--train_file is needed: the graph decides what a step takes");
  return files[0];
}

}  // namespace compact
