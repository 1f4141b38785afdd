// SPDX-License-Identifier: Apache-2.0
#include "compact/train/ignored_options.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/train/task.h"

namespace compact {
namespace {

struct Readers {
  const char* option;
  std::vector<const TaskInfo*> tasks;
};

// The tasks that read an option; all read the others.
std::span<const Readers> readers() {
  using Tasks = std::vector<const TaskInfo*>;
  static const Tasks of_text = {&language_modeling, &prompt_completion},
                     sentences = {&glue, &text_classification},
                     of_graphs = {&node_classification, &graph_classification},
                     with_dropout = {&glue, &text_classification, &node_classification,
                                     &graph_classification},
                     classifiers = {&glue, &text_classification, &node_classification,
                                    &graph_classification, &image_classification};
  static const Readers all[] = {{"block_size", of_text},
                                {"text_field", {&language_modeling}},
                                {"max_seq_length", sentences},
                                {"max_train_samples", sentences},
                                {"task_name", {&glue}},
                                {"data_dir", {&glue}},
                                {"text_column", {&text_classification}},
                                {"text_pair_column", {&text_classification}},
                                {"label_column", {&text_classification}},
                                {"do_regression", {&text_classification}},
                                {"prompt_column", {&prompt_completion}},
                                {"completion_column", {&prompt_completion}},
                                {"dropout", with_dropout},
                                {"label_smoothing_factor", classifiers},
                                {"width_mult", {&image_classification}},
                                {"augment", {&image_classification}},
                                {"hidden_size", of_graphs},
                                {"num_hidden_layers", of_graphs}};
  return all;
}

}  // namespace

std::vector<std::string> ignored_options(const TrainConfig& config) {
  const TrainConfig usual;
  const TaskInfo* const task = &task_named(config.task);
  std::vector<std::string> lines;
  for (const ConfigOption& option : config_options()) {
    if (option_text(config, option) == option_text(usual, option)) continue;
    if (option.name == "image_size" && !config.train_file.empty()) {
      lines.push_back(cat("--", option.name, " takes no effect: images keep their own size"));
    }
    for (const Readers& of : readers()) {
      if (option.name != of.option || std::ranges::find(of.tasks, task) != of.tasks.end()) continue;
      std::string names;
      for (const TaskInfo* t : of.tasks) names += cat(names.empty() ? "" : ", ", t->name);
      lines.push_back(cat("--", option.name, " takes no effect: it is for ", names));
    }
  }
  return lines;
}

}  // namespace compact
