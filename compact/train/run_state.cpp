// SPDX-License-Identifier: Apache-2.0
#include "compact/train/run_state.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/codecs/memory_place.h"
#include "compact/config/option.h"
#include "compact/io/adapter_folder.h"
#include "compact/io/checkpoint.h"
#include "compact/io/checksum.h"
#include "compact/io/json_file.h"
#include "compact/optim/moment.h"
#include "compact/tasks/adapters.h"
#include "compact/tasks/setup.h"
#include "compact/train/plans.h"

namespace compact {
namespace {

using nlohmann::json;

std::string checksum_text(uint64_t x) { return std::to_string(x); }

bool same_policy_options(const OpenCheckpoint& open, const std::string& checkpoint,
                         const TrainConfig& c) {
  if (!c.policy.empty() || !open.trainer_state.contains("config")) return false;
  const TrainConfig old =
      config_from_json(open.trainer_state["config"].dump(), checkpoint + "/trainer_state.json");
  return std::ranges::all_of(config_options(), [&](const ConfigOption& option) {
    return option.resume != ResumeRule::kPolicy ||
           option_text(old, option) == option_text(c, option);
  });
}

// Whether two policies hold every slot, gradient and moment of the task's network alike, by
// whichever patterns; settings are compared as they are written, places of moments and weights not
// at all.
bool same_treatments(const TrainConfig& c, const Task& task, const Policy& a, const Policy& b) {
  const std::unique_ptr<Network> network = task.network(c, a, at::kMeta);
  const auto type_of = [&](const Policy& policy, const Parameter& p) {
    return moment_kind(optimizer_options(c, policy, nullptr).moment(p)).type;
  };
  for (const Parameter* p : network->parameters()) {
    if (a.grad(p->name) != b.grad(p->name) || type_of(a, *p) != type_of(b, *p)) return false;
  }
  const auto slots_of = [&](const Policy& policy) {
    std::vector<std::pair<std::string, std::string>> slots;
    const StepPlan plan = Plans(c, task, c10::kCPU).plan(policy);
    for (const SlotBytes& s : plan.memory.slots) slots.emplace_back(s.name, s.treatment);
    return slots;
  };
  return slots_of(a) == slots_of(b);
}

Policy stored_policy(const OpenCheckpoint& open, const std::string& checkpoint) {
  Policy policy = Policy::parse(open.texts.at("policy.txt"), checkpoint + "/policy.txt");
  policy.make_general();  // the run that stored it has checked it
  return policy;
}

}  // namespace

std::string save_run(const TrainConfig& config, const RunState& s, const Network& model,
                     const Optimizer& optimizer, const Policy& policy, const Task& task,
                     const OtherParts& other_parts) {
  OptimizerState state = optimizer.state();
  CheckpointContent content;
  content.model = trained_tensors(model);
  content.optimizer = std::move(state.tensors);
  content.optimizer_parts = other_parts ? s.ranks : 1;
  content.other_parts = other_parts;
  content.check = check_disks;
  content.config = task.config;
  content.trainer_state = run_state_to_json(s);
  content.trainer_state["optimizer"] = state.numbers;
  content.trainer_state["data_checksum"] = checksum_text(task.checksum);
  content.trainer_state["config"] = json::parse(config_json(config));
  content.texts["policy.txt"] = policy.str();
  if (!task.adapter.is_null()) {
    content.adapters = true;
    content.texts[kAdapterConfig] = json_text(adapter_config(task, model), kAdapterConfig);
  }
  content.texts.insert(task.files.begin(), task.files.end());
  return save_checkpoint(config.output_dir, s.step, content).string();
}

std::string find_checkpoint(const TrainConfig& config, std::vector<std::string>& warnings) {
  if (config.resume_from_checkpoint != "latest") {
    const auto reason = verify_checkpoint(config.resume_from_checkpoint);
    COMPACT_CHECK(!reason, *reason, "; --resume_from_checkpoint takes `latest`, or a folder as ",
                  config.output_dir, "/checkpoint-100");
    return config.resume_from_checkpoint;
  }
  const auto path = newest_valid_checkpoint(config.output_dir, warnings);
  COMPACT_CHECK(path, config.output_dir, ": has no valid checkpoint to resume from",
                warnings.empty() ? "; --save_steps keeps some, and --model_name_or_path goes on "
                                   "from a final model"
                                 : "; " + warnings.front());
  return path->string();
}

RunState read_run_state(const std::string& checkpoint) {
  const OpenCheckpoint open = open_checkpoint(checkpoint, /*verified=*/true);
  return run_state_from_json(open.trainer_state, checkpoint + "/trainer_state.json");
}

std::string machine_of(at::Device device) {
  if (device.is_cuda()) return "CUDA";
  const int threads = at::get_num_threads();
  return cat(threads, threads == 1 ? " thread, " : " threads, ", at::get_cpu_capability());
}

std::string take_over_machine(RunState& s, at::Device device) {
  const std::string before = std::exchange(s.machine, machine_of(device));
  if (before.empty() || before == s.machine) return {};
  return cat("the run goes on with ", s.machine, ", after ", before,
             ": from here on it differs from an uninterrupted one");
}

namespace {

bool divides_step(const ConfigOption& option) {
  return option.name == "per_device_train_batch_size" ||
         option.name == "gradient_accumulation_steps";
}

}  // namespace

void check_same_run(const std::string& checkpoint, const TrainConfig& config, int64_t ranks,
                    const Policy& policy, const Task& task, std::vector<std::string>& warnings) {
  const OpenCheckpoint open = open_checkpoint(checkpoint, /*verified=*/true);
  const json& j = open.trainer_state;
  COMPACT_CHECK(
      j.contains("config") && j.contains("data_checksum") && open.texts.contains("policy.txt"),
      checkpoint, ": not a checkpoint of a training run");
  const TrainConfig old = config_from_json(j["config"].dump(), checkpoint + "/trainer_state.json");
  const RunState before_state = run_state_from_json(j, checkpoint + "/trainer_state.json");
  COMPACT_CHECK(config.max_steps <= 0 || before_state.step <= config.max_steps, "--max_steps is ",
                config.max_steps, ", and ", checkpoint, " has made ", before_state.step,
                " steps: a resumed run goes on from there");
  COMPACT_CHECK(config.preset != "auto" || old.preset == "auto", "--preset is auto, but was ",
                old.preset, " in the run of ", checkpoint,
                ": a resumed run keeps its policy; --model_name_or_path ", checkpoint,
                " begins another run with its weights");
  const bool other_ranks = before_state.ranks != ranks;
  if (other_ranks) {
    const int64_t before = samples_of_step(old, before_state.ranks),
                  now = samples_of_step(config, ranks);
    COMPACT_CHECK(before == now, "a step has ", now, " samples of ", ranks, " ranks, but had ",
                  before, " of ", before_state.ranks, " in the run of ", checkpoint,
                  ": a resumed run keeps that product of ranks, batch and accumulation");
    COMPACT_CHECK(before_state.micro == 0, checkpoint, " was saved inside a step by ",
                  before_state.ranks, " ranks: only as many can go on with it");
  }
  for (const ConfigOption& option : config_options()) {
    const std::string before = option_text(old, option), now = option_text(config, option);
    const ResumeRule rule = option.resume;
    // The policy, the data's checksum and the machine are compared themselves.
    if (before == now || rule == ResumeRule::kFree || rule == ResumeRule::kPolicy) continue;
    if (other_ranks && divides_step(option)) continue;  // their product is compared above
    COMPACT_CHECK(rule == ResumeRule::kWarned, "--", option.name, " is ", now, ", but was ", before,
                  " in the run of ", checkpoint,
                  ": a resumed run keeps what its numbers depend on");
    warnings.push_back(cat("--", option.name, " is ", now, ", was ", before,
                           ": from here on the run differs from an uninterrupted one"));
  }
  // Up to --zero 1 passes are summed before ranks, above that ranks before passes.
  if (ranks > 1 && before_state.ranks > 1 && config.gradient_accumulation_steps > 1 &&
      (old.zero > 1) != (config.zero > 1)) {
    warnings.push_back(cat("--zero is ", config.zero, ", was ", old.zero,
                           ": micro-batches and ranks are summed in another order"));
  }
  COMPACT_CHECK(open.texts.at("policy.txt") == policy.str() ||
                    same_treatments(config, task, stored_policy(open, checkpoint), policy),
                "preset or policy differ from those of ", checkpoint,
                " (policy.txt there): a resumed run keeps them");
  for (const auto& [key, before] : open.config.items()) {
    // These do not change the network; where they change the data, its checksum differs.
    if (key == "bos_token_id" || key == "eos_token_id") continue;
    if (key == "pad_token_id" && !before.is_null() && task.config.value(key, json()).is_null()) {
      warnings.push_back(cat("the model's pad_token_id was ", before.dump(),
                             ", which is not an id of ",
                             "--tokenizer: from here on its embedding is trained"));
      continue;
    }
    COMPACT_CHECK(!task.config.contains(key) || task.config[key] == before, "the model's ", key,
                  " is ", task.config.value(key, json()).dump(), ", but was ", before.dump(),
                  " in the run of ", checkpoint, ": a resumed run keeps its model");
  }
  COMPACT_CHECK(j["data_checksum"] == checksum_text(task.checksum),
                "the training data is not that of ", checkpoint, ": it has another checksum");
}

Policy resumed_policy(const std::string& checkpoint, const TrainConfig& config,
                      std::vector<std::string>& warnings) {
  const OpenCheckpoint open = open_checkpoint(checkpoint, /*verified=*/true);
  if (config.preset != "auto" && !same_policy_options(open, checkpoint, config)) {
    return make_policy(config, warnings);
  }
  COMPACT_CHECK(open.texts.contains("policy.txt"), checkpoint,
                ": not a checkpoint of a training run");
  return stored_policy(open, checkpoint);
}

std::string digest_of(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.detach().cpu().contiguous();
  return xxh3({static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()});
}

namespace {

std::string digest_of_weights(const Network& model) {
  std::string digests;
  for (const auto& [name, tensor] : model.named_tensors()) {
    for (const at::Tensor& t : model.held(tensor)) digests += digest_of(t) + "\n";
  }
  return xxh3(digests);
}

}  // namespace

void take_over_reference(RunState& s, const Network& reference, const std::string& checkpoint) {
  const std::string before = std::exchange(s.reference, digest_of_weights(reference));
  COMPACT_CHECK(checkpoint.empty() || before == s.reference,
                "the reference has other weights than that of ", checkpoint,
                ": --model_name_or_path and --reference must name what the run began with");
}

void take_over_base(RunState& s, const Network& model, const std::string& checkpoint) {
  if (model.adapter_tensors().empty()) return;
  const std::string before = std::exchange(s.base, digest_of_weights(model));
  COMPACT_CHECK(checkpoint.empty() || before == s.base,
                "the weights of --model_name_or_path are not those beside which the adapters of ",
                checkpoint, " were trained");
}

void load_run(const std::string& checkpoint, Network& model, Optimizer& optimizer) {
  at::NoGradGuard no_grad;
  const OpenCheckpoint open = open_checkpoint(checkpoint, /*verified=*/true);
  for (auto& [name, tensor] : trained_tensors(model)) open.model.read_into(name, tensor);
  StoredState state;
  for (const SafetensorsFile& part : open.optimizer) {
    for (const TensorEntry& entry : part.entries()) {
      state.tensors.push_back({entry.name, entry.dtype, entry.shape,
                               [&](at::Tensor& to) { part.read_into(entry.name, to); }});
    }
  }
  COMPACT_CHECK(open.trainer_state.contains("optimizer"), checkpoint, ": has no optimizer state");
  try {
    state.numbers = open.trainer_state["optimizer"].get<std::map<std::string, int64_t>>();
  } catch (const json::exception& e) {
    fail(checkpoint, "/trainer_state.json: `optimizer` must be named integers: ", e.what());
  }
  optimizer.load(state);
}

}  // namespace compact
