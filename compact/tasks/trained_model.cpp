// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/trained_model.h"

#include <ATen/Parallel.h>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/named.h"
#include "compact/base/text.h"
#include "compact/config/memory_limit.h"
#include "compact/config/option.h"
#include "compact/config/precision.h"
#include "compact/data/files/byte_source.h"
#include "compact/data/text/prepare.h"
#include "compact/data/text/text_table.h"
#include "compact/data/text/token_file.h"
#include "compact/io/model_weights.h"
#include "compact/json/json.h"
#include "compact/tasks/load_weights.h"
#include "compact/tasks/setup.h"

namespace compact {
namespace {

// The run's task, or empty. Reads only this key, since other versions have other options.
std::string task_of_run(const std::string& train_config) {
  const nlohmann::json json = read_json(train_config);
  const auto task = json.is_object() ? json.find("task") : json.end();
  return task != json.end() && task->is_string() ? task->get<std::string>() : "";
}

// Columns that the run read, unless others are named or the file lacks them.
void take_columns(const std::string& train_config, TrainConfig& c) {
  const nlohmann::json json = read_json(train_config);
  if (c.task == language_modeling.name) {
    const auto field = json.is_object() ? json.find("text_field") : json.end();
    if (field != json.end() && field->is_string() &&
        !is_given(c, named(config_options(), "text_field", "option"))) {
      set_option(c, "text_field", {*field}, train_config);
    }
    return;
  }
  const auto table = open_table(c.validation_file[0], {.strict = false});
  for (const char* const name : {"text_column", "text_pair_column", "label_column", "prompt_column",
                                 "completion_column", "chosen_column", "rejected_column"}) {
    const auto value = json.is_object() ? json.find(name) : json.end();
    if (value == json.end() || !value->is_string()) continue;
    const std::string column = *value;
    if (is_given(c, named(config_options(), name, "option")) ||
        !table->has(split(column, ',')[0])) {
      continue;
    }
    set_option(c, name, {column}, train_config);
  }
}

// The settings of pairs that the run had, unless others are given.
void take_loss(const std::string& train_config, TrainConfig& c) {
  const nlohmann::json json = read_json(train_config);
  for (const char* const name :
       {"beta", "loss_type", "label_smoothing_factor", "block_size", "truncation"}) {
    if (!json.is_object() || !json.contains(name) ||
        is_given(c, named(config_options(), name, "option"))) {
      continue;
    }
    const nlohmann::json& value = json[name];
    set_option(c, name, {value.is_string() ? value.get<std::string>() : value.dump()},
               train_config);
  }
}

bool is_table_name(const std::string& path) {
  const std::string_view name = without_compression(path);
  return name.ends_with(".jsonl") || name.ends_with(".csv") || name.ends_with(".tsv");
}

// The folder's task; or, where a task of GLUE is named, `glue`.
const TaskInfo& evaluated_task(const TrainConfig& c) {
  const TaskInfo& of_folder = task_of_folder(c.model_name_or_path);
  const bool file = !c.validation_file.empty(), name = !c.task_name.empty();
  COMPACT_CHECK(name == !c.data_dir.empty() && file != name,
                "either --validation_file is needed, or --task_name and --data_dir");
  if (file) {
    std::string task = c.task;
    const std::string run = c.model_name_or_path + "/train_config.json";
    if (task.empty() && is_file(run)) {
      task = task_of_run(run);
      // Plain text is scored as language modeling, even for a model tuned on prompts.
      const std::string tokens = token_file_at(c.validation_file[0]);
      const bool samples =
          tokens.empty() ? is_table_name(c.validation_file[0]) : TokenFile(tokens).info().samples;
      if (task == prompt_completion.name && !samples) task.clear();
      if (task == preference.name &&
          (!samples || (!tokens.empty() && !TokenFile(tokens).info().pairs)))
        task = samples ? prompt_completion.name : "";
    }
    if (task == glue.name || task.empty()) return of_folder;
    const TaskInfo& named = task_named(task);
    COMPACT_CHECK(named.use == of_folder.use || task == TrainConfig().task, c.model_name_or_path,
                  ": is a model for ", of_folder.name, ", --task is ", task);
    return named.use == of_folder.use ? named : of_folder;
  }
  COMPACT_CHECK(&of_folder == &text_classification, c.model_name_or_path, ": is a model for ",
                of_folder.name, ", --task_name ", c.task_name, " is for models for ",
                text_classification.name);
  return glue;
}

}  // namespace

TrainedModel open_trained_model(TrainConfig c) {
  check_values(c);
  COMPACT_CHECK(!c.model_name_or_path.empty(), "--model_name_or_path DIR is needed");
  const TaskInfo& info = evaluated_task(c);
  c.task = info.name;
  const std::string run = c.model_name_or_path + "/train_config.json";
  if (!c.validation_file.empty() && is_table_name(c.validation_file[0]) && is_file(run) &&
      (&info == &prompt_completion || &info == &preference || &info == &text_classification ||
       &info == &language_modeling)) {
    take_columns(run, c);
  }
  if (&info == &preference && is_file(run) && task_of_run(run) == preference.name) {
    take_loss(run, c);
  }
  c.model.clear();
  c.train_file.clear();
  if (info.check) info.check(c);
  c = for_task(std::move(c));
  if (c.threads > 0) at::set_num_threads(static_cast<int>(c.threads));
  std::vector<std::string> warnings = ignored_options(c);
  const at::Device device = device_of(c.device, warnings);
  set_deterministic(c.deterministic, device.type());
  TrainedModel model{
      .config = c,
      .task = info.open(c, {.only_evaluates = true}, warnings),  // NOLINT: before the move
      .network = nullptr,
      .warnings = std::move(warnings)};
  if (model.task.lengths_vary) bound_primitive_caches();
  set_matmul_precision(c.matmul_precision, device);
  model.network = model.task.network(c, Policy::preset("exact"), device);
  const LoadedWeights loaded = load_weights(*model.network, c.model_name_or_path);
  COMPACT_CHECK(loaded.fresh.empty(), c.model_name_or_path, ": has no tensor `", loaded.fresh[0],
                "`: it was not trained for this task");
  for (const std::string& line : loaded.warnings) model.warnings.push_back(line);
  return model;
}

}  // namespace compact
