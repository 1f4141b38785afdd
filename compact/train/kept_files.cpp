// SPDX-License-Identifier: Apache-2.0
#include "compact/train/kept_files.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/text.h"
#include "compact/data/files/utf8.h"

namespace compact {
namespace {

// What they take together: they are held, and written with every checkpoint.
constexpr int64_t kMost = int64_t{8} << 20;

const char* const kKept = "*.{json,py,txt,jinja}";
const char* const kLeftOut[] = {
    // weights, and what says that others are added to them or how they are quantized
    "*.index.json", "adapter_*", "{quantize,quantization}_config.json",
    // written again
    "config.json", "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "chat_template*",
    // of a run
    "all_results.json", "train_results.json", "eval_results.json", "train_config.json",
    "policy.txt", "memory.txt", "written.txt", "best_model.json", "trainer_state.json",
    "{optimizer,scheduler,scaler,rng_state,training_args}*",
    // documentation
    "{LICENSE,NOTICE,USE_POLICY}*", ".*"};

bool is_kept(const std::string& name) {
  return glob_match(kKept, name) && name == repaired_utf8(name) &&
         std::ranges::none_of(kLeftOut,
                              [&](const char* pattern) { return glob_match(pattern, name); });
}

}  // namespace

std::map<std::string, std::string> kept_files(const std::string& folder,
                                              std::vector<std::string>& warnings) {
  std::set<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (is_kept(entry.path().filename().string()) && is_file(entry.path())) {
      paths.insert(entry.path());
    }
  }
  std::map<std::string, std::string> files;
  int64_t left = kMost;
  for (const std::filesystem::path& path : paths) {
    try {
      std::string text = read_text(path, left);
      left -= static_cast<int64_t>(text.size());
      files[path.filename().string()] = std::move(text);
    } catch (const InputError& e) {
      warnings.push_back(cat(e.what(), "; not taken along to --output_dir"));
    }
  }
  return files;
}

}  // namespace compact
