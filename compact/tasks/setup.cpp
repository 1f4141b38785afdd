// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/setup.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/philox.h"
#include "compact/config/gpu_facts.h"
#include "compact/config/option.h"
#include "compact/data/tokenizers/prepared_folder.h"
#include "compact/tasks/load_weights.h"
#include "compact/tasks/tokenizer_store.h"

namespace compact {
namespace {

int64_t updates_of(double epochs, int64_t samples, int64_t step) {
  return std::max<int64_t>(
      1, std::llround(epochs * static_cast<double>(samples) / static_cast<double>(step)));
}

// The card of a prepared folder that --tokenizer names, or without that one whose data are read;
// else "".
std::string prepared_card(const TrainConfig& c) {
  if (!c.tokenizer.empty()) {
    const Spec spec = Spec::parse(c.tokenizer);
    return spec.name == "prepared" ? spec.text("file", "") : "";
  }
  for (const auto* files : {&c.train_file, &c.validation_file}) {
    if (files->size() == 1 && is_prepared_folder((*files)[0])) {
      return (std::filesystem::path((*files)[0]) / kPreparedCard).string();
    }
  }
  return "";
}

}  // namespace

uint64_t key_of(const TrainConfig& c, RandomUse use) {
  return derive(static_cast<uint64_t>(c.seed), static_cast<uint64_t>(use));
}

Accelerator accelerator() {
  return {.gpu = at::globalContext().hasCUDA(), .kernels = has_cuda_kernels()};
}

at::Device device_of(const std::string& name, const Accelerator& there,
                     std::vector<std::string>& warnings) {
  COMPACT_CHECK(name == "auto" || name == "cpu" || name == "cuda",
                "--device must be auto, cpu or cuda, is `", name, "`");
  const at::Device gpu(at::kCUDA, 0);
  const char* const how = "scripts/train.sh or the preset `cuda` of CMake builds them";
  if (name == "cuda") {
    COMPACT_CHECK(there.kernels, "--device cuda: this build has no kernels for CUDA; ", how);
    COMPACT_CHECK(there.gpu, "--device cuda: torch sees no GPU here");
    return gpu;
  }
  if (name == "auto" && there.gpu && there.kernels) return gpu;
  if (name == "auto" && there.gpu) {
    warnings.push_back(
        cat("--device auto takes the CPU: there is a GPU, but this build has no kernels for it; ",
            how));
  }
  return at::kCPU;
}

at::Device device_of(const std::string& name, std::vector<std::string>& warnings) {
  return device_of(name, accelerator(), warnings);
}

c10::DeviceType planned_device_of(const std::string& name, std::vector<std::string>& warnings) {
  return name == "cuda" ? c10::kCUDA : device_of(name, warnings).type();
}

at::ScalarType dtype_of(const std::string& name) {
  const std::string type = type_name(name);
  COMPACT_CHECK(type == "float32" || type == "bfloat16", "dtype must be float32 or bfloat16, is `",
                name, "`");
  return type == "float32" ? at::kFloat : at::kBFloat16;
}

Policy make_policy(const TrainConfig& c, std::vector<std::string>& warnings) {
  Policy policy = Policy::preset(c.preset);
  if (!c.policy.empty()) policy.append(Policy::from_file(c.policy));
  std::string lines;
  for (const std::string& line : c.set) lines += line + "\n";
  const Policy sets = Policy::parse(lines, "--set");

  for (const ConfigOption& option : config_options()) {
    const std::string &key = option.projects, value = option_text(c, option);
    if (key.empty() || !is_given(c, option)) continue;
    COMPACT_CHECK(!sets.sets_projection(key, value), "--", option.name, " ", value,
                  " and a --set line give `", key, "` different values");
    if (policy.override_projection(key, value) == 0) {
      warnings.push_back(
          cat("--", option.name, " takes no effect: preset `", c.preset, "` projects no gradient"));
    }
  }
  policy.append(sets);
  return policy;
}

void say_unused_bits(const TrainConfig& c, const Policy& policy,
                     std::vector<std::string>& warnings) {
  for (const ConfigOption& option : config_options()) {
    if (!option.name.starts_with("bits_") || !is_given(c, option) || policy.fewest_open_bits())
      continue;
    warnings.push_back(cat("--", option.name, " takes no effect: preset `", c.preset,
                           "` leaves no bits open (`adapt=N`)"));
  }
}

int64_t samples_of_step(const TrainConfig& c, int64_t ranks) {
  return c.per_device_train_batch_size * c.gradient_accumulation_steps * ranks;
}

int64_t total_steps(const TrainConfig& c, int64_t ranks, int64_t samples) {
  return c.max_steps > 0 ? c.max_steps
                         : updates_of(c.num_train_epochs, samples, samples_of_step(c, ranks));
}

int64_t evaluation_interval(const TrainConfig& c, int64_t ranks, int64_t samples) {
  return c.eval_epochs > 0 ? updates_of(c.eval_epochs, samples, samples_of_step(c, ranks))
                           : c.eval_steps;
}

std::string offload_folder_of(const TrainConfig& c) {
  return c.offload_folder.empty() ? c.output_dir : c.offload_folder;
}

OptimizerOptions optimizer_options(const TrainConfig& c, const Policy& policy,
                                   std::shared_ptr<Group> group) {
  std::string state = c.optim_state_dtype;
  if (state.empty())
    state = c.dtype == "bfloat16" && !c.master_weights && !c.use_peft ? "bfloat16" : "float32";
  state = state == "float8" ? "f8" : state == "bfloat16" ? "bf16" : "f32";
  OptimizerOptions options;
  options.kind = &optimizer_named(c.optim);
  options.beta1 = c.adam_beta1;
  options.beta2 = c.adam_beta2;
  options.eps = c.adam_epsilon;
  options.weight_decay = c.weight_decay;
  options.sgd_momentum = c.momentum;
  options.master_weights = c.master_weights;
  options.reduce_type = dtype_of(c.reduce_dtype);
  options.tree_sums = c.deterministic_reduce;
  options.f32_sums = c.gradient_accumulation_steps > 1 ||
                     (group && group->size() > 1 && options.reduce_type == at::kFloat);
  if (c.projected_learning_rate > 0) {
    COMPACT_CHECK(c.learning_rate > 0, "--projected_learning_rate ",
                  number_text(c.projected_learning_rate), " needs a --learning_rate above 0, is ",
                  number_text(c.learning_rate));
    options.hidden_lr_factor = c.projected_learning_rate / c.learning_rate;
  }
  options.zero = static_cast<int>(c.zero);
  options.group = std::move(group);
  options.seed = key_of(c, RandomUse::kOptimizer);
  options.moment = [policy, state](const Parameter& p) {
    const std::string moment = policy.moment(p.name);
    return moment.empty() ? state : moment;
  };
  options.offload_folder = offload_folder_of(c);
  return options;
}

std::unique_ptr<Tokenizer> tokenizer_of(const TrainConfig& c, bool data) {
  if (!c.tokenizer.empty()) return open_tokenizer(c.tokenizer);
  if (!data) return nullptr;
  if (const std::string card = prepared_card(c); !card.empty()) {
    return make_tokenizer(Spec{"prepared", {{"file", card}}});
  }
  const bool trained = !c.model_name_or_path.empty() && has_weights(c.model_name_or_path);
  return trained ? load_tokenizer(c.model_name_or_path) : make_tokenizer("bytes");
}

bool reads_with_own_tokenizer(const TrainConfig& c) {
  if (const std::string card = prepared_card(c); !card.empty()) {
    const auto files = make_tokenizer(Spec{"prepared", {{"file", card}}})->files();
    const std::filesystem::path folder = c.model_name_or_path;
    return has_weights(folder) && std::ranges::all_of(files, [&](const auto& file) {
             const auto& [name, bytes] = file;
             if (name.ends_with(".jinja")) return true;  // changes no id
             const auto size = static_cast<int64_t>(bytes.size());
             return is_file(folder / name) &&
                    std::filesystem::file_size(folder / name) == bytes.size() &&
                    read_text(folder / name, size) == bytes;
           });
  }
  if (c.tokenizer.empty()) return has_weights(c.model_name_or_path);
  std::error_code error;
  if (is_folder(c.tokenizer)) {
    return std::filesystem::equivalent(c.tokenizer, c.model_name_or_path, error);
  }
  const Spec spec = Spec::parse(c.tokenizer);
  const std::string file = spec.text("file", spec.text("vocab", ""));
  return !file.empty() && std::filesystem::equivalent(std::filesystem::absolute(file).parent_path(),
                                                      c.model_name_or_path, error);
}

uint64_t noise_key(const TrainConfig& c, int64_t step, int64_t micro) {
  return derive(derive(key_of(c, RandomUse::kNoise), static_cast<uint64_t>(step)),
                static_cast<uint64_t>(micro));
}

}  // namespace compact
