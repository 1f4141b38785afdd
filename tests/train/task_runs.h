// SPDX-License-Identifier: Apache-2.0
// Small runs of the tasks on images and graphs.
#pragma once

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/image_records.h"
#include "tests/shared_data.h"
#include "tests/train/resume.h"

namespace compact {

namespace fs = std::filesystem;

// Rings of 5 or 6 nodes in two classes, tagged.
inline void write_graphs(const fs::path& path, int count) {
  std::ostringstream text;
  text << count << "\n";
  for (int i = 0; i < count; ++i) {
    const int nodes = 5 + i % 2;
    text << nodes << " " << i % 2 << "\n";
    for (int n = 0; n < nodes; ++n) {
      text << (n + i) % 3 << " 2 " << (n + nodes - 1) % nodes << " " << (n + 1) % nodes << "\n";
    }
  }
  spill(path, text.str());
}

inline TrainConfig base(const fs::path& folder, const std::string& output) {
  TrainConfig c = small_run(folder, output);
  c.learning_rate = 0.02;
  c.optim = "sgd";
  c.weight_decay = 1e-3;
  c.validation_split = 0.25;
  return c;
}

inline TrainConfig images(const fs::path& folder, const std::string& output) {
  if (!fs::exists(folder / "train.bin")) write_images(folder / "train.bin", 60);
  TrainConfig c = base(folder, output);
  c.task = "image-classification";
  c.model = "resnet20";
  c.width_mult = 0.25;
  c.train_file = {(folder / "train.bin").string()};
  return c;
}

inline TrainConfig graphs(const fs::path& folder, const std::string& output) {
  if (!fs::exists(folder / "graphs.txt")) write_graphs(folder / "graphs.txt", 40);
  TrainConfig c = base(folder, output);
  c.task = "graph-classification";
  c.model = "gat";
  c.train_file = {(folder / "graphs.txt").string()};
  return c;
}

inline TrainConfig nodes(const fs::path& folder, const std::string& output) {
  TrainConfig c = base(folder, output);
  c.task = "node-classification";
  c.model = "gcn";
  c.train_file = {shared_data("graph/cora.npz")};
  return c;
}

// The configuration that evaluates what a run left.
inline TrainConfig evaluation_of(const TrainConfig& run, const std::vector<std::string>& files,
                                 int64_t samples) {
  TrainConfig c;
  c.model_name_or_path = run.output_dir;
  c.validation_file = files;
  c.device = "cpu";
  c.max_eval_samples = samples;
  return c;
}

}  // namespace compact
