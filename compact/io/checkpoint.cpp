// SPDX-License-Identifier: Apache-2.0
#include "compact/io/checkpoint.h"

#include <algorithm>
#include <set>
#include <system_error>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/io/adapter_folder.h"
#include "compact/io/checksum.h"
#include "compact/io/json_file.h"

namespace compact {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr std::string_view kFolderPrefix = "checkpoint-";
constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kConfigFile = "config.json";
constexpr const char* kStateFile = "trainer_state.json";
constexpr const char* kManifestKey = "checkpoint";

// The optimizer's file, or one of its parts, from 1.
std::string optimizer_file(int64_t part, int64_t parts) {
  if (parts == 1) return "optimizer.safetensors";
  return formatted("optimizer-%05d-of-%05d.safetensors", static_cast<int>(part),
                   static_cast<int>(parts));
}

bool is_optimizer_file(std::string_view name) {
  return name.starts_with("optimizer") && name.ends_with(".safetensors");
}

bool is_own_file(std::string_view name) {
  return name == kModelFile || name == kAdapterFile || is_optimizer_file(name) ||
         name == kConfigFile || name == kStateFile;
}

// A name that stays in its folder, or one in a folder of it.
bool is_plain_name(std::string_view name) {
  return name.find('\0') == name.npos &&
         std::ranges::all_of(split(name, '/'), [](const auto& part) {
           return !part.empty() && part != "." && part != "..";
         });
}

// The checksum that a state carries of itself: of its text without that checksum. Objects have one
// text only, since their keys are sorted and numbers read back exactly.
std::string own_checksum(json state) {
  state[kManifestKey].erase("xxh3");
  return xxh3(state.dump());
}

// The manifest of a checkpoint, its own checksum verified. InputError where it is not as written.
json read_state(const fs::path& path) {
  const fs::path file = path / kStateFile;
  json state = read_json(file);
  COMPACT_CHECK(state.is_object() && state.contains(kManifestKey), file.string(),
                ": must hold an object `", kManifestKey, "`");
  const json& manifest = state[kManifestKey];
  COMPACT_CHECK(manifest.is_object() && manifest.contains("version") &&
                    manifest["version"].is_number_integer(),
                file.string(), ": `", kManifestKey, "` must have a version");
  COMPACT_CHECK(manifest["version"] == kCheckpointVersion, file.string(), ": version must be ",
                kCheckpointVersion, ", is ", manifest["version"].dump());
  const std::string expected = own_checksum(state);
  COMPACT_CHECK(manifest.contains("xxh3") && manifest["xxh3"] == expected, file.string(),
                ": its checksum must be that of its content, ", expected, ", is ",
                manifest.value("xxh3", json()).dump());
  COMPACT_CHECK(manifest.contains("step") && manifest["step"].is_number_integer() &&
                    manifest.contains("files") && manifest["files"].is_object(),
                file.string(), ": `", kManifestKey, "` must have a step and files");
  return state;
}

void check_file(const fs::path& file, const json& expected) {
  COMPACT_CHECK(expected.is_object() && expected.contains("bytes") && expected.contains("xxh3"),
                file.string(), ": the manifest must have its bytes and xxh3");
  const int64_t bytes = InputFile(file).size();
  COMPACT_CHECK(expected["bytes"] == bytes, file.string(), ": must have ", expected["bytes"].dump(),
                " bytes, has ", bytes);
  const FileDigest digest = digest_file(file);
  COMPACT_CHECK(expected["xxh3"] == digest.xxh3, file.string(), ": checksum must be ",
                expected["xxh3"].dump(), ", is \"", digest.xxh3, "\"");
}

// The step that a folder's name gives, as save_checkpoint() writes it.
std::optional<int64_t> step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kFolderPrefix)) return std::nullopt;
  const auto step = parse_integer(std::string_view(name).substr(kFolderPrefix.size()));
  if (!step || *step < 0 || name != cat(kFolderPrefix, *step)) return std::nullopt;
  return step;
}

const char* model_file(const json& manifest) {
  return manifest["files"].contains(kAdapterFile) ? kAdapterFile : kModelFile;
}

std::vector<std::string> optimizer_files(const json& manifest) {
  std::vector<std::string> names;
  for (const auto& [name, digest] : manifest["files"].items()) {
    if (is_optimizer_file(name)) names.push_back(name);
  }
  return names;
}

// The trainer state of a sound checkpoint; throws InputError where it is not sound.
json verified_state(const fs::path& path) {
  json state = read_state(path);
  const json& manifest = state[kManifestKey];
  const auto named = step_of(path);
  COMPACT_CHECK(!named || manifest["step"] == *named, path.string(),
                ": the folder's name must have the checkpoint's step, ", manifest["step"].dump());
  for (const char* name : {model_file(manifest), kConfigFile}) {
    COMPACT_CHECK(manifest["files"].contains(name), path.string(), ": the manifest must list ",
                  name);
  }
  const std::vector<std::string> parts = optimizer_files(manifest);
  for (size_t i = 0; i < std::max<size_t>(parts.size(), 1); ++i) {
    const auto count = static_cast<int64_t>(std::max<size_t>(parts.size(), 1));
    const std::string name = optimizer_file(static_cast<int64_t>(i) + 1, count);
    COMPACT_CHECK(manifest["files"].contains(name), path.string(), ": the manifest must list ",
                  name);
  }
  for (const auto& [name, expected] : manifest["files"].items()) {
    COMPACT_CHECK(is_plain_name(name), path.string(), ": the manifest must list plain names, has `",
                  name, "`");
    check_file(path / name, expected);
  }
  return state;
}

void write_content(const fs::path& to, int64_t step, const CheckpointContent& content) {
  std::vector<CheckpointFile> written;
  const auto write_own = [&] {
    written.push_back(write_optimizer_part(to, 1, content.optimizer_parts, content.optimizer));
  };
  if (content.other_parts) {
    for (CheckpointFile& file : content.other_parts(to, write_own)) written.push_back(file);
  } else {
    write_own();
  }
  COMPACT_CHECK(static_cast<int64_t>(written.size()) == content.optimizer_parts, to.string(),
                ": a checkpoint of ", content.optimizer_parts, " parts has ", written.size());
  const char* const model = content.adapters ? kAdapterFile : kModelFile;
  write_safetensors(to / model, content.model, kModelMetadata);
  if (content.check) content.check();
  write_json(to / kConfigFile, content.config);
  write_files_atomically(to, content.texts);
  std::vector<std::string> names = {model, kConfigFile};
  for (const auto& [name, text] : content.texts) names.push_back(name);
  json files = json::object();
  for (const CheckpointFile& file : written) {
    // A file on another machine's disk is not part of this checkpoint.
    std::error_code error;
    COMPACT_CHECK(fs::exists(to / file.name, error), to.string(), ": has no ", file.name,
                  ", which another process wrote: all must see one file system");
    files[file.name] = {{"bytes", file.bytes}, {"xxh3", file.xxh3}};
  }
  for (const std::string& name : names) {
    const FileDigest digest = digest_file(to / name);
    files[name] = {{"bytes", digest.bytes}, {"xxh3", digest.xxh3}};
  }
  json state = content.trainer_state;
  state[kManifestKey] = {{"version", kCheckpointVersion}, {"step", step}, {"files", files}};
  json_text(state, (to / kStateFile).string());  // refuses what the checksum below cannot dump
  state[kManifestKey]["xxh3"] = own_checksum(state);
  write_json(to / kStateFile, state);
}

}  // namespace

CheckpointFile write_optimizer_part(const fs::path& folder, int64_t part, int64_t parts,
                                    const NamedTensors& tensors) {
  const std::string name = optimizer_file(part, parts);
  Metadata metadata = kTorchFormat;
  if (parts > 1) {
    json offsets = json::object();
    for (const auto& [tensor, value] : tensors) {
      offsets[tensor] = {{"saved_offsets", std::vector<int64_t>(value.sizes().size(), 0)}};
    }
    metadata["DCP_VERSION"] = "1.0";
    metadata["DCP_SHARDING_INFO"] = offsets.dump();
  }
  write_safetensors(folder / name, tensors, metadata);
  const FileDigest digest = digest_file(folder / name);
  return {.name = name, .bytes = digest.bytes, .xxh3 = digest.xxh3};
}

fs::path save_checkpoint(const fs::path& folder, int64_t step, const CheckpointContent& content) {
  COMPACT_CHECK(step >= 0, folder.string(), ": a checkpoint's step must not be negative, is ",
                step);
  COMPACT_CHECK(content.trainer_state.is_object() && !content.trainer_state.contains(kManifestKey),
                folder.string(), ": trainer state must be an object without `", kManifestKey, "`");
  for (const auto& [name, text] : content.texts) {
    COMPACT_CHECK(is_plain_name(name) && !is_own_file(name), folder.string(),
                  ": a checkpoint's text must have a plain name of its own, has `", name, "`");
  }
  make_folders(folder);
  remove_leftovers(folder);
  const fs::path path = folder / cat(kFolderPrefix, step);
  write_directory_atomically(path, [&](const fs::path& to) { write_content(to, step, content); });
  return path;
}

std::vector<CheckpointFolder> list_checkpoints(const fs::path& folder) {
  std::vector<CheckpointFolder> found;
  std::error_code error;
  auto entry = fs::directory_iterator(folder, error);
  if (error == std::errc::no_such_file_or_directory) return found;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const auto step = step_of(entry->path());
    std::error_code hidden;
    const fs::file_type type = fs::status(entry->path(), hidden).type();
    // One that cannot be looked at is listed: it is for verification to say what is wrong.
    if (step && (type == fs::file_type::directory || type == fs::file_type::none)) {
      found.push_back({*step, entry->path()});
    }
  }
  // An unreadable folder must not look like one without checkpoints.
  COMPACT_CHECK(!error, folder.string(), ": cannot list its checkpoints (", error.message(), ")");
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

std::optional<std::string> verify_checkpoint(const fs::path& path) {
  try {
    verified_state(path);
    return std::nullopt;
  } catch (const InputError& error) {
    return error.what();
  }
}

std::optional<fs::path> newest_valid_checkpoint(const fs::path& folder,
                                                std::vector<std::string>& warnings) {
  const auto all = list_checkpoints(folder);
  for (auto found = all.rbegin(); found != all.rend(); ++found) {
    const auto reason = verify_checkpoint(found->path);
    if (!reason) return found->path;
    warnings.push_back(cat("checkpoint passed over: ", *reason));
  }
  return std::nullopt;
}

OpenCheckpoint open_checkpoint(const fs::path& path, bool verified) {
  json state = verified ? read_state(path) : verified_state(path);
  const json manifest = state[kManifestKey];
  state.erase(kManifestKey);
  std::map<std::string, std::string> texts;
  for (const auto& [name, digest] : manifest["files"].items()) {
    if (is_own_file(name)) continue;
    COMPACT_CHECK(is_plain_name(name) && digest.is_object() && digest.contains("bytes") &&
                      digest["bytes"].is_number_integer(),
                  path.string(), ": the manifest must have the bytes of `", name, "`");
    texts[name] = read_text(path / name, digest["bytes"].get<int64_t>());
  }
  std::vector<SafetensorsFile> optimizer;
  for (const std::string& name : optimizer_files(manifest)) optimizer.emplace_back(path / name);
  return {.path = path,
          .step = manifest["step"].get<int64_t>(),
          .model = SafetensorsFile(path / model_file(manifest)),
          .optimizer = std::move(optimizer),
          .config = read_json(path / kConfigFile),
          .trainer_state = std::move(state),
          .texts = std::move(texts)};
}

std::vector<fs::path> rotate_checkpoints(const fs::path& folder, int64_t save_total_limit,
                                         const fs::path& keep) {
  std::vector<fs::path> removed;
  const auto all = list_checkpoints(folder);
  const int64_t excess = static_cast<int64_t>(all.size()) - save_total_limit;
  if (save_total_limit <= 0 || excess <= 0) return removed;
  std::vector<std::string> ignored;
  const auto newest = newest_valid_checkpoint(folder, ignored);
  if (!newest) return removed;
  for (int64_t i = 0; i < excess; ++i) {
    if (all[i].path == *newest || all[i].path == keep) continue;
    remove_atomically(all[i].path);
    removed.push_back(all[i].path);
  }
  return removed;
}

}  // namespace compact
