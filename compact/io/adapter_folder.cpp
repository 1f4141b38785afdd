// SPDX-License-Identifier: Apache-2.0
#include "compact/io/adapter_folder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/io/checksum.h"
#include "compact/io/config_keys.h"
#include "compact/io/json_file.h"

namespace compact {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = kAdapterPrefix, kA = ".lora_A.weight", kB = ".lora_B.weight";

// In config.json of a model: digests of the files of adapters that were added to it.
constexpr const char* kMerged = "compact_merged_adapters";

std::string tensor_name(const std::string& module, std::string_view end) {
  return cat(kPrefix, module, end);
}

}  // namespace

AdapterFolder::AdapterFolder(const fs::path& folder) : file_(folder / kAdapterFile) {
  const std::string where = (folder / kAdapterConfig).string();
  const nlohmann::json config = read_json(where);
  const ConfigKeys keys(config, where);
  COMPACT_CHECK(keys.text("peft_type", "") == "LORA", where, ": peft_type must be LORA");
  COMPACT_CHECK(keys.text("bias", "none") == "none", where, ": bias must be none");
  for (const char* key :
       {"use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "layer_replication",
        "trainable_token_indices", "lora_bias", "alora_invocation_tokens", "use_qalora",
        "use_bdlora", "arrow_config", "kasa_config", "velora_config", "monteclora_config"}) {
    const nlohmann::json* value = keys.find(key);
    const bool off = !value || value->empty() || *value == false;
    COMPACT_CHECK(off, where, ": ", key, " is not read, is ", value->dump());
  }
  // Other ways subtract the first B A from the base at the start, which is then another model.
  if (const nlohmann::json* begun = keys.find("init_lora_weights")) {
    const bool beside = begun->is_null() || begun->is_boolean() || *begun == "gaussian" ||
                        *begun == "orthogonal" || *begun == "eva" || *begun == "mica";
    COMPACT_CHECK(beside, where,
                  ": init_lora_weights must leave the base as it is (true, false, "
                  "gaussian, orthogonal, eva, mica), is ",
                  begun->dump(), "; peft saves it so by path_initial_model_for_weight_conversion");
  }
  base_ = keys.text("base_model_name_or_path", "");
  alpha_ = keys.number("lora_alpha", 8);
  COMPACT_CHECK(std::isfinite(alpha_), where, ": lora_alpha must be finite");
  rslora_ = keys.flag("use_rslora", false);
  transposed_ = keys.flag("fan_in_fan_out", false);
  file_.verify();
  for (const TensorEntry& entry : file_.entries()) {
    const bool a = entry.name.ends_with(kA);
    COMPACT_CHECK(entry.name.starts_with(kPrefix) && (a || entry.name.ends_with(kB)),
                  file_.path().string(), ": must have A and B of modules alone, has `", entry.name,
                  "`");
    const std::string module = entry.name.substr(
        kPrefix.size(), entry.name.size() - kPrefix.size() - (a ? kA : kB).size());
    const std::string other = tensor_name(module, a ? kB : kA);
    COMPACT_CHECK(file_.contains(other), file_.path().string(), ": has no tensor `", other, "`");
    const std::vector<int64_t>&mine = entry.shape, &its = file_.entry(other).shape;
    COMPACT_CHECK(mine.size() == 2 && its.size() == 2 && mine[a ? 0 : 1] == its[a ? 1 : 0] &&
                      mine[a ? 0 : 1] > 0,
                  file_.path().string(), ": A and B of `", module,
                  "` must be [rank, in] and [out, rank]");
    added_[module] = false;
  }
  COMPACT_CHECK(!added_.empty(), file_.path().string(), ": has no tensors");
}

void AdapterFolder::add(const std::string& name, const at::Tensor& weight) {
  constexpr std::string_view kEnd = ".weight";
  if (!name.ends_with(kEnd)) return;
  const std::string_view module = std::string_view(name).substr(0, name.size() - kEnd.size());
  // The names of a base that was saved without its head lack a first word, as `transformer.`.
  const auto named = [&](const auto& one) {
    return std::string_view(one.first).substr(one.first.find('.') + 1) == module;
  };
  auto found = added_.find(std::string(module));
  if (found == added_.end()) found = std::ranges::find_if(added_, named);
  if (found == added_.end()) return;
  const at::NoGradGuard no_grad;
  const auto read = [&](std::string_view end) {
    return file_.read(tensor_name(found->first, end)).to(at::kFloat);
  };
  const at::Tensor a = read(kA), b = read(kB);
  COMPACT_CHECK(weight.dim() == 2 && weight.is_floating_point() && weight.element_size() >= 2,
                file_.path().string(), ": the adapter of `", found->first,
                "` is for a matrix of float32, bfloat16 or float16, not of ",
                weight.dtype().name());
  const at::Tensor matrix = transposed_ ? weight.t() : weight;
  COMPACT_CHECK(matrix.sizes() == at::IntArrayRef({b.size(0), a.size(1)}), file_.path().string(),
                ": the adapter of `", found->first,
                "` is for another shape than that of the model");
  const auto rank = static_cast<double>(a.size(0));
  const at::Tensor delta = b.mm(a).mul_(alpha_ / (rslora_ ? std::sqrt(rank) : rank));
  matrix.copy_(matrix.to(at::kFloat).add(delta.to(weight.device())));
  found->second = true;
}

void AdapterFolder::check_all_added() const {
  for (const auto& [module, added] : added_) {
    COMPACT_CHECK(added, file_.path().string(), ": has an adapter of `", module,
                  "`, which the model lacks");
  }
}

void AdapterFolder::refuse_merged(const nlohmann::json& config, const std::string& where) const {
  const ConfigKeys keys(config, where);
  if (!keys.find(kMerged)) return;
  const auto merged = keys.required_list<std::string>(kMerged);
  const bool twice = std::ranges::count(merged, digest_file(file_.path()).xxh3) > 0;
  COMPACT_CHECK(!twice, where, ": the model has the adapters of ", file_.path().string(),
                " already (", kMerged, "): it is what a merge wrote, not their base");
}

void AdapterFolder::mark_merged(nlohmann::json& config) const {
  config[kMerged].push_back(digest_file(file_.path()).xxh3);
}

void write_adapter_folder(const fs::path& folder, const NamedTensors& adapters,
                          const nlohmann::json& config) {
  write_json(folder / kAdapterConfig, config);
  write_safetensors(folder / kAdapterFile, adapters, kModelMetadata);
}

}  // namespace compact
