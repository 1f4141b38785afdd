// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/load_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/numbered_name.h"
#include "compact/base/text.h"
#include "compact/io/adapter_folder.h"
#include "compact/io/json_file.h"
#include "compact/io/model_weights.h"
#include "compact/tasks/nf4_folder.h"

namespace compact {
namespace {

// Tensors of blocks in the files that were not read: those that were read in other blocks, and all
// named like "encoder.layer.11.output.dense.weight", "model.layers.0.mlp.up_proj.weight" and
// "layer3.2.conv1.weight".
std::vector<std::string> unread_blocks(const ModelWeights& weights,
                                       const std::set<std::string>& read) {
  std::vector<std::string> all;
  std::set<std::string> alike;
  for (const std::string& name : read) alike.insert(NumberedName(name).general());
  for (const std::string& name : weights.names()) {
    const bool block = glob_match("*layer{,?}.*.{weight,bias}", name) ||
                       alike.contains(NumberedName(name).general());
    if (block && !read.contains(name)) all.push_back(name);
  }
  return all;
}

// Reads a tensor, in codes or not, into one that is held in codes or not. `how`: the codes that a
// matrix was read through before.
void read_tensor(const ModelWeights& weights, const std::string& found, Network& model,
                 const std::string& name, at::Tensor& to, const std::optional<ReadInNf4>& how) {
  const bool stored = has_nf4(weights, found), codes = model.nf4() && model.nf4()->find(to),
             through = how && is_coded(name, to.sizes());
  if (!stored && !codes && !through) return weights.read_into(found, to, Cast::kAllow);
  if (!stored) {
    // To round it again would be another model than the folder's.
    COMPACT_CHECK(!codes || !read_in_nf4(weights.path().string()), weights.path().string(), ": `",
                  found, "` is in no codes, as other matrices of blocks are");
    const at::Tensor dense = at::empty(to.sizes(), codes ? model.dtype() : how->type);
    at::Tensor matrix = dense;
    weights.read_into(found, matrix, Cast::kAllow);
    if (!codes) {
      to.copy_(through_nf4(dense, *how));
      return;
    }
    return model.nf4()->set(to, encode_nf4(dense, model.nf4()->nested()));
  }
  const StoredNf4 read = read_nf4(weights, found);
  COMPACT_CHECK(to.sizes() == at::IntArrayRef({read.codes.rows, read.codes.columns}),
                weights.path().string(), ": `", found, "` must be ", to.sizes(), ", is ",
                read.codes.rows, " x ", read.codes.columns);
  if (!codes) {
    to.copy_(decoded(read.codes, how ? how->type : to.scalar_type()));
    return;
  }
  COMPACT_CHECK(read.codes.nested() == model.nf4()->nested(), weights.path().string(), ": `", found,
                "` must have scales that are ", model.nf4()->nested() ? "" : "not ",
                "nested, as config.json says");
  model.nf4()->set(to, read.codes);
}

LoadedWeights load(Network& model, const std::string& folder, const std::optional<ReadInNf4>& how);

}  // namespace

void check_model_folder(const std::string& folder, const std::string& option) {
  std::error_code ignored;
  COMPACT_CHECK(std::filesystem::exists(folder, ignored), option, " ", folder,
                ": there is no such folder; models are not downloaded, and those of `compact list "
                "models` are for --model");
  COMPACT_CHECK(!is_folder(folder) || std::filesystem::exists(folder + "/config.json", ignored),
                option, " ", folder,
                std::filesystem::exists(folder + "/" + kAdapterConfig, ignored)
                    ? ": has adapters, but not config.json of their model: `compact merge` makes a "
                      "model of them"
                    : ": has no config.json, so it is not the folder of a model");
}

bool has_weights(const std::string& folder) {
  const std::filesystem::path path(folder);
  return std::ranges::any_of(
      std::array{"model.safetensors", "model.safetensors.index.json", kAdapterFile},
      [&](const char* name) { return std::filesystem::exists(path / name); });
}

bool has_adapters(const std::string& folder) {
  return std::filesystem::exists(std::filesystem::path(folder) / kAdapterFile);
}

bool has_whole_weights(const std::string& folder) {
  const std::filesystem::path path(folder);
  return std::filesystem::exists(path / "model.safetensors") ||
         std::filesystem::exists(path / "model.safetensors.index.json");
}

std::string base_of(const std::string& folder, const AdapterFolder& adapters) {
  const std::string& base = adapters.base();
  COMPACT_CHECK(
      !base.empty() && has_weights(base) && !has_adapters(base), folder, "/", kAdapterConfig,
      ": base_model_name_or_path must be the folder of a model with weights, is `", base, "`");
  return base;
}

void refuse_other_weights(const std::string& folder) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const auto begins = [&](const char* text) { return name.starts_with(text); };
    // Files that trainers write beside weights.
    if (std::ranges::any_of(
            std::array{"optimizer", "scheduler", "scaler", "rng_state", "training_args"}, begins)) {
      continue;
    }
    const bool other =
        std::ranges::any_of(std::array{".safetensors", ".gguf", ".pt", ".pth", ".ckpt", ".bin",
                                       ".h5", ".msgpack", ".ot", ".onnx"},
                            [&](const char* end) { return name.ends_with(end); });
    COMPACT_CHECK(!other, folder, ": has weights in ", name,
                  ", read are model.safetensors and the shards that model.safetensors.index.json "
                  "names (save_pretrained of transformers writes them)");
  }
}

LoadedWeights load_weights(Network& model, const std::string& folder) {
  return load(model, folder, std::nullopt);
}

LoadedWeights load_base_weights(Network& model, const std::string& folder) {
  return load(model, base_of(folder, AdapterFolder(folder)), read_in_nf4(folder));
}

namespace {

LoadedWeights load(Network& model, const std::string& folder, const std::optional<ReadInNf4>& how) {
  at::NoGradGuard no_grad;
  if (has_adapters(folder)) {
    COMPACT_CHECK(!has_whole_weights(folder), folder, ": has weights of a whole model beside ",
                  kAdapterFile, "; move one of them away");
    AdapterFolder adapters(folder);
    const std::string base = base_of(folder, adapters);
    adapters.refuse_merged(read_json(base + "/config.json"), base + "/config.json");
    LoadedWeights loaded = load_base_weights(model, folder);
    for (const auto& [name, tensor] : model.named_tensors()) adapters.add(name, tensor);
    adapters.check_all_added();
    return loaded;
  }
  const ModelWeights weights(folder);
  weights.verify();
  LoadedWeights result;
  std::set<std::string> read;
  for (auto& [name, tensor] : model.named_tensors()) {
    const std::string found =
        model.found_name(name, [&](const std::string& n) { return weights.contains(n); });
    // A head for other classes is initialised as well.
    if (model.may_be_new(name) && !has_nf4(weights, found) &&
        (!weights.contains(found) || tensor.sizes() != weights.entry(found).shape)) {
      result.fresh.push_back(name);
    } else {
      COMPACT_CHECK(name != "lm_head.weight" || weights.contains(found), folder, ": has no head `",
                    name,
                    "`, and config.json does not say that it is the embedding "
                    "(tie_word_embeddings): save the model with its head (AutoModelForCausalLM)");
      read_tensor(weights, found, model, name, tensor, how);
      read.insert(found);
      for (const std::string& copy : model.copies_of(name)) {
        COMPACT_CHECK(!weights.contains(copy) || weights.holds(copy, tensor), folder, ": `", copy,
                      "` and `", found,
                      "` differ, but config.json says that they are one: set tie_word_embeddings "
                      "to false there to keep both, or remove `",
                      copy, "` from the file");
      }
    }
  }
  const std::vector<std::string> unread = unread_blocks(weights, read);
  if (!unread.empty()) {
    result.warnings.push_back(cat(folder, ": ", unread.size(),
                                  " tensors of blocks are not in the model that config.json "
                                  "describes, as ",
                                  unread[0]));
  }
  return result;
}

}  // namespace
}  // namespace compact
