// SPDX-License-Identifier: Apache-2.0
// What a run trains: data, a network for them, and how to name what it counts. One table of tasks.
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

struct Task {
  std::unique_ptr<Dataset> train, validation, test;  // null where no file is named
  // Those that it is evaluated on, by the prefixes of their figures.
  std::vector<std::pair<std::string, const Dataset*>> held_out() const;
  uint64_t checksum = 0;  // of the training data
  // With new weights and the policy's treatments, as the configuration says: that of the task, or
  // one that differs in type, block or batch.
  using MakeNetwork =
      std::function<std::unique_ptr<Network>(const TrainConfig&, const Policy&, at::Device)>;
  MakeNetwork network;
  MakeNetwork smallest;  // has a segment of each kind that `network` has; null: the same
  // A micro-batch of so many samples, of no meaning but the sizes of real ones (the largest).
  using MakeInputs = std::function<StepInputs(const TrainConfig&, at::Device, int64_t batch)>;
  MakeInputs inputs;
  bool lengths_vary = false;                 // of real ones, so that most are smaller
  bool resident = false;                     // on the CPU batches are the data set's own tensors
  nlohmann::json config;                     // config.json of the model
  std::map<std::string, std::string> files;  // kept beside it: the tokenizer
  AttentionShape attention;                  // of a decoder
  std::string unit = "samples";              // what speed is counted in: tokens, images, nodes
  int64_t units = 1;                         // of them in a sample
  std::string target = {};                   // what has a loss; empty: the unit
  int64_t classes = 0;                       // targets are below, or ignored; 0: they are values
  const std::string& target_unit() const { return target.empty() ? unit : target; }
  std::vector<std::string> metrics;     // by their names in base/scores.h, the first counts most
  double positive_class = 1;            // of f1
  std::string test_prefix = "test";     // of the figures on `test`
  std::string network_text, data_text;  // "vocabulary 257"; "1,024 blocks of 256 tokens"
};

// How a task is opened.
struct Opening {
  Progress progress = {};       // of reading training data
  bool only_evaluates = false;  // these stay closed, and the model tells its classes
};

struct TaskInfo {
  std::string name, summary;
  // Throws InputError on settings that the task cannot have; opens no file.
  void (*check)(const TrainConfig& config) = nullptr;
  // Opens what the configuration names of --train_file, --validation_file and --test_file.
  Task (*open)(const TrainConfig& config, const Opening& opening,
               std::vector<std::string>& warnings);
  ModelUse use;                   // what its models are for
  int64_t eval_samples = 0;       // that an evaluation reads at most where nobody says; 0: all
  bool planned_from_data = true;  // what a step takes depends on them
  bool one_sample = false;        // all there is makes one batch, whatever batch is asked for
  std::string compared = "off,exact,compact";  // presets of a comparison that names none
};
std::span<const TaskInfo* const> tasks();
// Throws InputError with a suggestion on an unknown name.
const TaskInfo& task_named(std::string_view name);
// The configuration as its task takes it, with the learning rate and warm-up that nobody gave.
TrainConfig for_task(TrainConfig config);
// The task of a model folder, by its config.json.
const TaskInfo& task_of_folder(const std::string& folder);

extern const TaskInfo language_modeling, image_classification, node_classification,
    graph_classification, text_classification, glue, prompt_completion;

// The network on a device, with weights of --model_name_or_path where it has them.
std::unique_ptr<Network> make_network(const TrainConfig& config, const Task& task,
                                      const Policy& policy, at::Device device,
                                      std::vector<std::string>& warnings);

// The micro-batches of the training data's next update that are this rank's, and the targets of all
// ranks that are not ignored. Ranks take them in their order, so that who takes them changes none.
struct BatchWindow {
  std::vector<Batch> batches;
  int64_t targets = 0;
};
BatchWindow next_window(const Task& task, const TrainConfig& config, Group& group);
// Throws InputError on a target that is none of the task's classes, which a GPU would not tell of.
void check_targets(const Batch& batch, const Task& task);

// A batch on a device, as the network reads it. To a GPU it goes by way of pinned memory, and
// nobody waits for it.
StepInputs inputs_of(const Batch& batch, at::Device device);

}  // namespace compact
