// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/adapters.h"

#include <nlohmann/json.hpp>
#include <set>

#include "compact/base/check.h"
#include "compact/io/adapter_folder.h"
#include "compact/io/json_file.h"
#include "compact/io/model_weights.h"
#include "compact/tasks/load_weights.h"

namespace compact {
namespace {

constexpr const char* kAllLinear = "all-linear";

bool all_linear(const TrainConfig& c) {
  return c.lora_target_modules == std::vector<std::string>{kAllLinear};
}

}  // namespace

Lora lora_of(const TrainConfig& c) {
  if (!c.use_peft) return {};
  Lora lora = {.rank = c.lora_r,
               .alpha = c.lora_alpha,
               .dropout = has_no_dropout(c) ? 0 : c.lora_dropout,
               .rslora = c.use_rslora};
  if (!all_linear(c)) lora.targets = c.lora_target_modules;
  return lora;
}

void check_adapters(const TrainConfig& c) {
  COMPACT_CHECK(!c.load_in_4bit || c.use_peft,
                "--load_in_4bit freezes what it puts into codes: it is for adapters, --use_peft");
  if (!c.use_peft) return;
  COMPACT_CHECK(task_named(c.task).use == ModelUse::kTokens,
                "--use_peft is for decoders (language-modeling, prompt-completion, preference), "
                "--task is ",
                c.task);
  COMPACT_CHECK(!c.master_weights,
                "--master_weights: adapters are float32, their own master; the weights beside them "
                "are frozen");
  COMPACT_CHECK(!c.lora_target_modules.empty(), "--lora_target_modules must name some products");
  for (const std::string& target : c.lora_target_modules) {
    COMPACT_CHECK(!target.empty() && target.find('.') == target.npos &&
                      (target != kAllLinear || all_linear(c)),
                  "--lora_target_modules must be names as q_proj, the same in every block, or "
                  "all-linear alone; has `",
                  target, "`");
  }
  COMPACT_CHECK(c.model_name_or_path.empty() || !has_adapters(c.model_name_or_path),
                "--use_peft: ", c.model_name_or_path,
                " has adapters already: `compact merge` makes a model of it");
}

nlohmann::json adapter_config(const TrainConfig& c) {
  nlohmann::json config = {{"peft_type", "LORA"},
                           {"task_type", "CAUSAL_LM"},
                           {"base_model_name_or_path", nullptr},
                           {"r", c.lora_r},
                           {"lora_alpha", c.lora_alpha},
                           {"lora_dropout", lora_of(c).dropout},
                           {"use_rslora", c.use_rslora},
                           {"target_modules", c.lora_target_modules},
                           {"bias", "none"},
                           {"fan_in_fan_out", false},
                           {"inference_mode", true},
                           {"init_lora_weights", true}};
  if (!c.model_name_or_path.empty()) {
    // Whole, since the adapters may be read from another folder.
    config["base_model_name_or_path"] =
        std::filesystem::absolute(c.model_name_or_path).lexically_normal().string();
  }
  return config;
}

NamedTensors trained_tensors(const Network& network) {
  NamedTensors adapters = network.adapter_tensors();
  return adapters.empty() ? network.named_tensors() : adapters;
}

nlohmann::json adapter_config(const Task& task, const Network& network) {
  nlohmann::json config = task.adapter;
  if (config["target_modules"] == nlohmann::json{kAllLinear}) {
    std::set<std::string> ends;
    for (const std::string& module : network.adapted_modules()) {
      ends.insert(module.substr(module.rfind('.') + 1));
    }
    config["target_modules"] = ends;
  }
  return config;
}

void write_trained(const std::filesystem::path& folder, const Task& task, const Network& network) {
  if (task.adapter.is_null()) {
    write_model_folder(folder, network.named_tensors(), task.config);
    return;
  }
  write_json(folder / "config.json", task.config);
  write_adapter_folder(folder, network.adapter_tensors(), adapter_config(task, network));
}

void load_trained(Network& network, const std::string& folder) {
  NamedTensors adapters = network.adapter_tensors();
  if (adapters.empty()) {
    load_weights(network, folder);
    return;
  }
  const SafetensorsFile file(folder + "/" + kAdapterFile);
  file.verify();
  for (auto& [name, tensor] : adapters) file.read_into(name, tensor);
}

}  // namespace compact
