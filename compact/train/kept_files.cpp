// SPDX-License-Identifier: Apache-2.0
#include "compact/train/kept_files.h"

#include <algorithm>
#include <filesystem>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/text.h"

namespace compact {
namespace {

constexpr int64_t kLargest = int64_t{16} << 20;

const char* const kLeftOut[] = {
    // weights
    "*.{safetensors,gguf,pt,pth,ckpt,bin,h5,msgpack,ot,onnx}", "*.index.json", "*.data",
    // written anew
    "config.json", "tokenizer*", "*.model", "*.tiktoken", "vocab.*", "merges.txt",
    "special_tokens_map.json", "added_tokens.json", "chat_template*",
    // of a run
    "metrics.jsonl", "all_results.json", "train_results.json", "eval_results.json",
    "train_config.json", "policy.txt", "bits.policy", "memory.txt", "best_model.json",
    "trainer_state.json", "events.out.*", "{optimizer,scheduler,scaler,rng_state,training_args}*",
    // documentation
    "*.md", "{LICENSE,NOTICE,USE_POLICY}*", "*.{png,jpg,jpeg,gif,svg,pdf}", ".*"};

}  // namespace

std::map<std::string, std::string> kept_files(const std::string& folder,
                                              std::vector<std::string>& warnings) {
  std::map<std::string, std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool left_out = std::ranges::any_of(
        kLeftOut, [&](const char* pattern) { return glob_match(pattern, name); });
    if (left_out || !is_file(entry.path())) continue;
    if (static_cast<int64_t>(entry.file_size(error)) > kLargest) {
      warnings.push_back(cat(entry.path().string(), ": has over ", format_bytes(kLargest),
                             " and is not taken along to --output_dir"));
      continue;
    }
    files[name] = read_text(entry.path(), kLargest);
  }
  return files;
}

}  // namespace compact
