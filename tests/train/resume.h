// SPDX-License-Identifier: Apache-2.0
// Properties of every run that is stopped and resumed.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "compact/config/exit_codes.h"
#include "compact/train/trainer.h"
#include "tests/temporary_folder.h"

namespace compact {

// The settings that the tests' runs share: six updates of two micro-batches of four.
inline TrainConfig small_run(const std::filesystem::path& folder, const std::string& output) {
  TrainConfig c;
  c.per_device_train_batch_size = 4;
  c.gradient_accumulation_steps = 2;
  c.max_steps = 6;
  c.logging_steps = 1;
  c.threads = 2;
  c.device = "cpu";
  c.bits_interval = 3;
  c.bits_probes = 2;
  c.output_dir = (folder / output).string();
  return c;
}

// A run of some task, made in a folder of its data, under a preset.
using MakeConfig = TrainConfig (*)(const std::filesystem::path& folder, const std::string& output);
struct ResumeCase {
  std::string name;
  MakeConfig make;
  std::string preset;
};
inline void PrintTo(const ResumeCase& c, std::ostream* out) { *out << c.name; }

// The rows of a run's metrics.
inline std::vector<nlohmann::json> metrics_of(const std::string& folder) {
  std::ifstream in(folder + "/metrics.jsonl");
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(in, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

// The same without times and the most bytes of a process's first step.
inline std::string figures(const std::string& folder) {
  std::string out;
  for (nlohmann::json& row : metrics_of(folder)) {
    for (auto i = row.begin(); i != row.end();) {
      const std::string& key = i.key();
      const bool passing = key.ends_with("_per_second") || key.ends_with("seconds") ||
                           key == "memory/peak_bytes" || key == "memory/reserved_bytes" ||
                           key == "memory/resident_bytes";
      i = passing ? row.erase(i) : ++i;
    }
    out += row.dump() + "\n";
  }
  return out;
}

// A run stopped after any of these (update, micro-batch) and resumed gives the weights and figures
// of one that was not, and leaves no model while it is not done. `late`: with results read late.
inline void expect_bit_exact_resume(const TrainConfig& whole,
                                    const std::vector<std::pair<int64_t, int64_t>>& stops,
                                    bool late = false) {
  std::ostringstream console;
  ASSERT_EQ(train(whole, console), kExitOk) << console.str();
  const std::string file = whole.use_peft ? "/adapter_model.safetensors" : "/model.safetensors";
  const std::string expected = slurp(whole.output_dir + file);
  ASSERT_FALSE(figures(whole.output_dir).empty());
  for (const auto& [step, micro] : stops) {
    TrainConfig part = whole;
    part.output_dir = whole.output_dir + std::to_string(step) + std::to_string(micro);
    TrainHooks hooks{.stop = [&](int64_t s, int64_t m) { return s == step && m == micro; },
                     .late_results = late};
    ASSERT_EQ(train(part, console, false, hooks), kExitInterrupt) << console.str();
    EXPECT_FALSE(std::filesystem::exists(part.output_dir + file));
    part.resume_from_checkpoint = "latest";
    ASSERT_EQ(train(part, console, false, {.late_results = late}), kExitOk) << console.str();
    EXPECT_TRUE(slurp(part.output_dir + file) == expected) << step << " " << micro;
    EXPECT_EQ(figures(part.output_dir), figures(whole.output_dir));
  }
}

}  // namespace compact
