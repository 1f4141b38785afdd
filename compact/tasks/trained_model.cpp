// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/trained_model.h"

#include <ATen/Parallel.h>

#include <algorithm>

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

// Sets an option to what the run had, unless another value is given. Returns whether that changed
// it.
bool take(const nlohmann::json& run, const std::string& source, const char* name, TrainConfig& c) {
  const ConfigOption& option = named(config_options(), name, "option");
  if (!run.is_object() || !run.contains(name) || is_given(c, option)) return false;
  const nlohmann::json& value = run[name];
  set_option(c, name, {value.is_string() ? value.get<std::string>() : value.dump()}, source);
  return is_given(c, option);
}

// Columns that the run read, unless others are named or the file lacks them.
void take_columns(const nlohmann::json& run, const std::string& source, TrainConfig& c) {
  if (c.task == language_modeling.name) {
    take(run, source, "text_field", c);
    return;
  }
  const auto table = open_table(c.validation_file[0], {.strict = false});
  for (const char* const name : {"text_column", "text_pair_column", "label_column", "prompt_column",
                                 "completion_column", "chosen_column", "rejected_column"}) {
    const auto column = run.find(name);
    if (column == run.end() || !column->is_string()) continue;
    if (table->has(split(column->get<std::string>(), ',')[0])) take(run, source, name, c);
  }
}

// The settings by which the run's own evaluations were made, unless others are given. Returns a
// line on those that differ from the program's own.
std::string take_settings(const nlohmann::json& run, const std::string& source, TrainConfig& c) {
  std::vector<const char*> names = {"block_size", "truncation", "max_seq_length"};
  if (c.task == preference.name) {
    names.insert(names.end(), {"loss_type", "beta", "reference", "label_smoothing_factor"});
  }
  std::string taken;
  for (const char* const name : names) {
    const ConfigOption& option = named(config_options(), name, "option");
    if (std::ranges::find(option.tasks, c.task) == option.tasks.end()) continue;
    // Smoothing is of one kind of loss, and another may have been asked for.
    if (option.name == "label_smoothing_factor" && c.loss_type != "sigmoid") continue;
    if (take(run, source, name, c)) taken += cat(" --", name, " ", option_text(c, option));
  }
  return taken.empty() ? "" : cat("as in the run:", taken);
}

// Tasks that may evaluate each other's models in the same way.
bool same_samples(const std::string& one, const std::string& two) {
  const auto encodes = [](const std::string& task) {
    return task == glue.name || task == text_classification.name;
  };
  return one == two || (encodes(one) && encodes(two));
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
  std::vector<std::string> warnings;
  if (const std::string file = c.model_name_or_path + "/train_config.json"; is_file(file)) {
    const nlohmann::json run = read_json(file);
    const bool texts = info.use == ModelUse::kTokens || info.use == ModelUse::kSequences;
    if (texts && !c.validation_file.empty() && is_table_name(c.validation_file[0])) {
      take_columns(run, file, c);
    }
    if (same_samples(task_of_run(file), c.task)) {
      const std::string line = take_settings(run, file, c);
      if (!line.empty()) warnings.push_back(line);
    }
  }
  c.model.clear();
  c.train_file.clear();
  if (info.check) info.check(c);
  c = for_task(std::move(c));
  if (c.threads > 0) at::set_num_threads(static_cast<int>(c.threads));
  for (std::string& line : ignored_options(c)) warnings.push_back(std::move(line));
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
