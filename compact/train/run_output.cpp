// SPDX-License-Identifier: Apache-2.0
#include "compact/train/run_output.h"

#include <nlohmann/json.hpp>
#include <ostream>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/io/checkpoint.h"
#include "compact/io/json_file.h"
#include "compact/train/output_folder.h"

namespace compact {
namespace {

constexpr int64_t kMostTables = int64_t{64} << 20;

const std::string& cleared(const TrainConfig& config) {
  clear_output_folder(config);
  return config.output_dir;
}

// memory.txt as an earlier process of the run left it.
std::string earlier_tables(const std::string& folder, int64_t step, Console& console) {
  const std::string path = folder + "/memory.txt";
  std::string tables;
  or_warn(console, "earlier tables", [&] {
    if (is_file(path)) tables = cat(read_text(path, kMostTables), "\nresumed at step ", step, "\n");
  });
  return tables;
}

}  // namespace

RunOutput::RunOutput(const TrainConfig& config, const Task& task, const Policy& policy,
                     int64_t last_step, bool ends, Console& console)
    : config_(config),
      task_(task),
      policy_(policy),
      console_(console),
      metrics_(cleared(config), last_step, ends, console),
      memory_(last_step < 0 ? "" : earlier_tables(config.output_dir, last_step, console)) {
  write_file_atomically(config.output_dir + "/policy.txt", policy.str());
  // For --config of another run, which must not take this one's folder for its own to remove, nor
  // its checkpoints.
  auto settings = nlohmann::json::parse(config_json(config));
  for (const char* own : {"overwrite_output_dir", "resume_from_checkpoint"}) settings.erase(own);
  write_json(config.output_dir + "/train_config.json", settings);
  std::string names;
  write_files_atomically(config.output_dir, task.files);
  for (const auto& [name, text] : task.files) names += name + "\n";
  write_file_atomically(cat(config.output_dir, "/", kWrittenNames), names);
}

void RunOutput::write_memory(const std::string& tables) {
  if (config_.verbose) console_.stream() << tables << std::flush;
  memory_ += tables;
  or_warn(console_, "memory.txt",
          [&] { write_file_atomically(config_.output_dir + "/memory.txt", memory_); });
}

void RunOutput::write_bits(const std::string& bits) {
  or_warn(console_, "bits.policy",
          [&] { write_file_atomically(config_.output_dir + "/bits.policy", bits); });
}

std::string RunOutput::write_checkpoint(const RunState& state, const Network& model,
                                        const Optimizer& optimizer, const std::string& why,
                                        const OtherParts& other_parts) {
  or_warn(console_, "figures that wait", [&] { metrics_.flush(); });
  const std::string path = save_run(config_, state, model, optimizer, policy_, task_, other_parts);
  console_.line(cat("saved ", path, why));
  or_warn(console_, "removing old checkpoints",
          [&] { rotate_checkpoints(config_.output_dir, config_.save_total_limit, path); });
  return path;
}

}  // namespace compact
