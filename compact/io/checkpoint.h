// SPDX-License-Identifier: Apache-2.0
// Checkpoints of training, `FOLDER/checkpoint-<step>/`:
//   model.safetensors, config.json   the model, as transformers loads it; or of one with adapters
//   adapter_model.safetensors        these alone (adapter_folder.h)
//   optimizer.safetensors            the optimizer's tensors; or where several processes have them
//   optimizer-00001-of-00002.safetensors, ...   those of each, whole tensors
//   trainer_state.json               the caller's state, and under "checkpoint" the manifest:
//                                    version, step, bytes and XXH3 of every other file, and an
//                                    XXH3 of this file's own content
//   any further small text files that the caller names
// A checkpoint appears whole or not at all (see atomic_file.h). One process writes a folder, and
// asks others for their parts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compact/base/function_ref.h"
#include "compact/io/safetensors.h"

namespace compact {

inline constexpr int64_t kCheckpointVersion = 1;

// A file in the folder that becomes a checkpoint.
struct CheckpointFile {
  std::string name;
  int64_t bytes = 0;
  std::string xxh3;
};

using OtherParts = std::function<std::vector<CheckpointFile>(const std::filesystem::path& folder,
                                                             FunctionRef<void()> own)>;

struct CheckpointContent {
  NamedTensors model;
  bool adapters = false;   // `model` are adapters
  NamedTensors optimizer;  // all of it, or the first part of several
  int64_t optimizer_parts = 1;
  // Where there are several: has the others written into the folder, as by write_optimizer_part(),
  // and calls `own` meanwhile.
  OtherParts other_parts{};
  // Called once all tensors were read: throws where they are not to be kept.
  std::function<void()> check{};
  nlohmann::json config;
  nlohmann::json trainer_state;                // an object without the key "checkpoint"
  std::map<std::string, std::string> texts{};  // file name -> content: policy.txt, a/b.json, ...
};

// A checkpoint folder of the right name; nothing is said of its content.
struct CheckpointFolder {
  int64_t step = 0;
  std::filesystem::path path;
};

// A checkpoint opened for reading. Tensors are read when asked for.
struct OpenCheckpoint {
  std::filesystem::path path;
  int64_t step;
  SafetensorsFile model;
  std::vector<SafetensorsFile> optimizer;  // its parts
  nlohmann::json config;
  nlohmann::json trainer_state;  // as given to save_checkpoint()
  std::map<std::string, std::string> texts;
};

// The part of a number, from 1, of several. Says in the words of PyTorch's distributed checkpoints
// that its tensors are whole.
CheckpointFile write_optimizer_part(const std::filesystem::path& folder, int64_t part,
                                    int64_t parts, const NamedTensors& tensors);

// Writes FOLDER/checkpoint-<step>, making FOLDER where it is missing and replacing a checkpoint of
// the same step; returns its path. On failure (disk full, ...) throws InputError and leaves the
// checkpoints of the folder as they were.
std::filesystem::path save_checkpoint(const std::filesystem::path& folder, int64_t step,
                                      const CheckpointContent& content);

// Oldest first. Empty where the folder does not exist; InputError where it cannot be read.
std::vector<CheckpointFolder> list_checkpoints(const std::filesystem::path& folder);

// Why the checkpoint cannot be used (one line with the file and the rule), or nothing where it is
// sound: reads every byte.
std::optional<std::string> verify_checkpoint(const std::filesystem::path& path);

// The sound checkpoint of the highest step. For every newer one passed over, `warnings` gets a
// line with the reason.
std::optional<std::filesystem::path> newest_valid_checkpoint(const std::filesystem::path& folder,
                                                             std::vector<std::string>& warnings);

// Verifies (unless `verified`: just found sound) and opens. InputError with the reason.
OpenCheckpoint open_checkpoint(const std::filesystem::path& path, bool verified = false);

// Removes the oldest checkpoints until `save_total_limit` are left (0 or less: all are), but never
// the newest sound one, nor `keep`: the one just saved, which is not of the highest step where a
// run went on from an earlier one. To be called after a save. Returns what was removed; nothing is
// removed while no checkpoint is sound.
std::vector<std::filesystem::path> rotate_checkpoints(const std::filesystem::path& folder,
                                                      int64_t save_total_limit,
                                                      const std::filesystem::path& keep = {});

}  // namespace compact
