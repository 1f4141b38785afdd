// SPDX-License-Identifier: Apache-2.0
// A task: data, a network for them, and the names of what is counted; and the table of tasks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compact/config/config.h"
#include "compact/data/files/reader.h"
#include "compact/data/samples/dataset.h"
#include "compact/models/families.h"
#include "compact/networks/network.h"
#include "compact/ops/policy/policy.h"
#include "compact/parallel/group.h"
#include "compact/plan/step_memory.h"

namespace compact {

class PromptDataset;

struct Task {
  std::unique_ptr<Dataset> train, validation, test;  // null where no file is named
  // The data sets that it is evaluated on, by the prefixes of their figures.
  std::vector<std::pair<std::string, const Dataset*>> held_out() const;
  std::vector<PromptDataset*> pairs;  // those of them that need a reference's log probabilities
  uint64_t checksum = 0;              // of the training data
  // Makes a network with new weights and the policy's treatments for a configuration: the task's,
  // or one that differs in type, block or batch.
  using MakeNetwork =
      std::function<std::unique_ptr<Network>(const TrainConfig&, const Policy&, at::Device)>;
  MakeNetwork network;
  MakeNetwork smallest;  // has a segment of each kind that `network` has; null: the same
  // A micro-batch of so many samples, as large as the largest real ones; values mean nothing.
  using MakeInputs = std::function<StepInputs(const TrainConfig&, at::Device, int64_t batch)>;
  MakeInputs inputs;
  bool lengths_vary = false;                 // most real micro-batches are smaller
  bool resident = false;                     // on the CPU batches share the data set's tensors
  nlohmann::json config;                     // config.json of the model
  nlohmann::json adapter;                    // adapter_config.json; null: it has no adapters
  std::map<std::string, std::string> files;  // tokenizer files, written beside it
  AttentionShape attention;                  // of decoders
  std::string unit = "samples";              // counted for speed: tokens, images, nodes
  int64_t units = 1;                         // units in a sample
  std::string rows = {};                     // name of what a batch counts; empty: the unit
  const std::string& batch_unit() const { return rows.empty() ? unit : rows; }
  std::string target = {};  // name of what has a loss; empty: the unit
  int64_t classes = 0;      // targets are below this, or ignored; 0: targets are values
  const std::string& target_unit() const { return target.empty() ? unit : target; }
  std::vector<std::string> metrics;     // names of base/scores.h, the most important first
  double positive_class = 1;            // of f1
  std::string positive_name = {};       // its name
  std::string test_prefix = "test";     // of the figures on `test`
  std::string network_text, data_text;  // "vocabulary 257"; "1,024 blocks of 256 tokens"
  std::vector<std::pair<std::string, double>> data_figures;  // of all_results.json
};

// How a task is opened.
struct Opening {
  Progress progress = {};       // of reading training data
  bool only_evaluates = false;  // training data stays closed, and the model has the classes
};

struct TaskInfo {
  std::string name, summary;
  // Throws InputError on settings that the task cannot have; opens no file.
  void (*check)(const TrainConfig& config) = nullptr;
  // Opens those of --train_file, --validation_file and --test_file that are named.
  Task (*open)(const TrainConfig& config, const Opening& opening,
               std::vector<std::string>& warnings);
  ModelUse use;                   // of its models
  int64_t eval_samples = 0;       // most samples of an evaluation by default; 0: all
  bool planned_from_data = true;  // a step's memory depends on the data
  bool one_sample = false;        // all data make one batch, whatever batch is configured
  std::string compared = "off,exact,compact";  // default presets of a comparison
};
std::span<const TaskInfo* const> tasks();
// Throws InputError with a suggestion on an unknown name.
const TaskInfo& task_named(std::string_view name);
// The configuration with its task's learning rate, warm-up and samples, where not given.
TrainConfig for_task(TrainConfig config);
// The configuration without its data, for plans of tasks that are not planned from it. A model
// without weights keeps the vocabulary that its text would be read with.
TrainConfig without_data(TrainConfig config);
// The task of a model folder, by its config.json.
const TaskInfo& task_of_folder(const std::string& folder);

// Whether models train without the dropout that they have: rewards are gains on a reference, which
// has none.
bool has_no_dropout(const TrainConfig& config);

extern const TaskInfo language_modeling, image_classification, node_classification,
    graph_classification, text_classification, glue, prompt_completion, preference;

// The network on a device, with the weights of --model_name_or_path if that has any.
std::unique_ptr<Network> make_network(const TrainConfig& config, const Task& task,
                                      const Policy& policy, at::Device device,
                                      std::vector<std::string>& warnings);

// This rank's micro-batches of the next update, and of all ranks the targets that are not ignored
// and the samples. Ranks take consecutive micro-batches, in order of rank.
struct BatchWindow {
  std::vector<Batch> batches;
  int64_t targets = 0, samples = 0;
};
BatchWindow next_window(const Task& task, const TrainConfig& config, Group& group);
// Throws InputError on a target outside the task's classes, which a GPU would not report.
void check_targets(const Batch& batch, const Task& task);

// A batch on a device, as the network reads it. Copied to a GPU from pinned memory, without
// waiting.
StepInputs inputs_of(const Batch& batch, at::Device device);

}  // namespace compact
