// SPDX-License-Identifier: Apache-2.0
#include "compact/train/kept_files.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <span>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/text.h"
#include "compact/data/files/utf8.h"

namespace compact {
namespace {

namespace fs = std::filesystem;

// The limit of all files together, since they are held and written with every checkpoint.
constexpr int64_t kMost = int64_t{8} << 20;
constexpr size_t kMostInFolder = 100;

using Patterns = std::span<const char* const>;

const char* const kKept[] = {"*.{json,py,txt,jinja}", "{license,licence,notice,use_policy}*"};
const char* const kTokenizer[] = {
    "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
    "*.model",    "*.jinja", "*.tiktoken", "chat_template*"};
const char* const kTemplates = "additional_chat_templates";
const char* const kWeights[] = {
    "*.{safetensors,bin,pt,pth,ckpt,gguf,onnx,h5,msgpack,npz,pkl,tflite}*", "*.index.json"};
const char* const kLeftOut[] = {
    // what says that others are added to weights or how they are quantized
    "adapter_*", "{quantize,quantization}_config.json",
    // written again
    "config.json",
    // of a run
    "all_results.json", "train_results.json", "eval_results.json", "train_config.json",
    "policy.txt", "memory.txt", "written.txt", "best_model.json", "trainer_state.json",
    "{optimizer,scheduler,scaler,rng_state,training_args}*",
    // hidden
    ".*"};
const char* const kFoldersLeftOut[] = {"checkpoint-*", "best",     "runs",        "onnx",
                                       "openvino",     "original", "__pycache__", ".*"};

bool matches(const std::string& name, Patterns patterns) {
  return std::ranges::any_of(patterns, [&](const char* p) { return glob_match(p, name); });
}

bool is_kept(const std::string& name, bool own_tokenizer) {
  const std::string small = lower_case(name);
  if (matches(small, kWeights) || matches(name, kLeftOut)) return false;
  return matches(name, kTokenizer) ? own_tokenizer : matches(small, kKept);
}

// The names in a folder; none where it cannot be read.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::string name = entry.path().filename().string();
    if (name == repaired_utf8(name)) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace

std::map<std::string, std::string> kept_files(const std::string& folder,
                                              const std::map<std::string, std::string>& written,
                                              bool own_tokenizer,
                                              std::vector<std::string>& warnings) {
  const fs::path root = folder;
  const auto left_out = [&](const std::string& what) {
    warnings.push_back(what + "; not taken along to --output_dir");
  };
  std::set<std::string> chosen;
  for (const std::string& name : names_in(root)) {
    if (is_file(root / name)) {
      if (is_kept(name, own_tokenizer)) chosen.insert(name);
      continue;
    }
    if (matches(name, kFoldersLeftOut) || (name == kTemplates && !own_tokenizer)) continue;
    const std::vector<std::string> inside = names_in(root / name);
    std::set<std::string> found;
    bool weights = false;
    for (const std::string& file : inside) {
      weights = weights || matches(lower_case(file), kWeights);
      if (!file.starts_with('.') && matches(lower_case(file), kKept) && is_file(root / name / file))
        found.insert(name + "/" + file);
    }
    if (weights || (inside.size() > kMostInFolder && !found.empty())) {
      left_out(cat((root / name).string(), ": has ", weights ? "weights" : "many files"));
    } else {
      chosen.merge(found);
    }
  }
  std::map<std::string, std::string> files;
  int64_t left = kMost;
  for (const std::string& name : chosen) {
    if (written.contains(name)) continue;
    try {
      std::string text = read_text(root / name, left);
      left -= static_cast<int64_t>(text.size());
      files[name] = std::move(text);
    } catch (const InputError& e) {
      left_out(e.what());
    }
  }
  return files;
}

}  // namespace compact
