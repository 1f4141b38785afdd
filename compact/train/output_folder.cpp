// SPDX-License-Identifier: Apache-2.0
#include "compact/train/output_folder.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/text.h"

namespace compact {
namespace {

namespace fs = std::filesystem;

// Whether a run writes a file of this name.
bool ours(const std::string& name) {
  for (const char* pattern : {"checkpoint-*", "events.out.tfevents.*", "best", kWrittenNames}) {
    if (glob_match(pattern, name)) return true;
  }
  for (const char* file : {"metrics.jsonl",
                           "all_results.json",
                           "train_config.json",
                           "policy.txt",
                           "bits.policy",
                           "memory.txt",
                           "config.json",
                           "model.safetensors",
                           "adapter_config.json",
                           "adapter_model.safetensors",
                           "tokenizer_config.json",
                           "tokenizer.model",
                           "tokenizer.json",
                           "vocab.txt",
                           "vocab.json",
                           "merges.txt",
                           "special_tokens_map.json",
                           "added_tokens.json",
                           "chat_template.jinja",
                           "generation_config.json",
                           "preprocessor_config.json",
                           "processor_config.json"}) {
    if (name == file) return true;
  }
  return false;
}

// Whether `path` is the folder or lies in it, links followed.
bool within(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  const fs::path a = fs::weakly_canonical(path, error), b = fs::weakly_canonical(folder, error);
  return std::mismatch(b.begin(), b.end(), a.begin(), a.end()).first == b.end();
}

// Whether there is anything but a lock.
bool in_use(const fs::path& folder) {
  std::error_code error;
  const fs::directory_iterator entries(folder, error);
  return error || std::any_of(begin(entries), end(entries), [](const auto& entry) {
           return entry.path().filename() != kLockName;
         });
}

void check_contents(const TrainConfig& c) {
  const fs::path folder(c.output_dir);
  COMPACT_CHECK(!in_use(folder) || c.overwrite_output_dir || !c.resume_from_checkpoint.empty(),
                "--output_dir ", c.output_dir,
                ": is not empty; give another, or --overwrite_output_dir, or "
                "--resume_from_checkpoint (what a "
                "launcher starts again goes on from a checkpoint that --save_steps kept there)");
  COMPACT_CHECK(!c.overwrite_output_dir || !c.resume_from_checkpoint.empty() ||
                    c.model_name_or_path.empty() || !within(c.model_name_or_path, folder),
                "--overwrite_output_dir would remove --model_name_or_path ", c.model_name_or_path,
                ", which lies in --output_dir: give another folder");
}

}  // namespace

void check_output_place(const TrainConfig& c) {
  const fs::path folder(c.output_dir);
  std::error_code error;
  if (!fs::exists(folder, error)) {
    fs::path parent = fs::absolute(folder).parent_path();
    while (!fs::exists(parent, error) && parent.has_relative_path()) parent = parent.parent_path();
    COMPACT_CHECK(fs::is_directory(parent, error) && access(parent.c_str(), W_OK) == 0,
                  "--output_dir ", c.output_dir, ": ", parent.string(),
                  " is not a writable folder");
    return;
  }
  COMPACT_CHECK(fs::is_directory(folder, error), "--output_dir ", c.output_dir,
                ": is not a folder");
  COMPACT_CHECK(access(folder.c_str(), W_OK) == 0, "--output_dir ", c.output_dir,
                ": is not writable");
}

std::unique_ptr<FolderLock> take_output_folder(const TrainConfig& c,
                                               std::vector<std::string>& warnings) {
  check_output_place(c);
  auto lock =
      std::make_unique<FolderLock>(c.output_dir);  // first: another run may be writing there
  check_contents(c);
  if (!lock->held()) {
    warnings.push_back(cat("--output_dir ", c.output_dir,
                           ": its file system has no locks; no other run may write there"));
  }
  remove_leftovers(c.output_dir, /*alone=*/lock->held());
  return lock;
}

void clear_output_folder(const TrainConfig& c) {
  if (!c.overwrite_output_dir || !c.resume_from_checkpoint.empty()) return;
  try {
    const fs::path list = fs::path(c.output_dir) / kWrittenNames;
    if (is_file(list)) {
      for (const std::string& name : split(read_text(list, int64_t{1} << 20), '\n')) {
        const fs::path path = fs::path(name).lexically_normal();
        if (name.empty() || path != name || path.is_absolute() || *path.begin() == "..") continue;
        fs::remove(list.parent_path() / path);
        std::error_code error;  // a folder with more in it stays
        if (path.has_parent_path()) fs::remove(list.parent_path() / path.parent_path(), error);
      }
    }
    for (const auto& entry : fs::directory_iterator(c.output_dir)) {
      if (ours(entry.path().filename().string())) fs::remove_all(entry.path());
    }
  } catch (const fs::filesystem_error& error) {
    fail("--output_dir ", c.output_dir, ": cannot remove an earlier run: ", error.what());
  }
}

}  // namespace compact
