// SPDX-License-Identifier: Apache-2.0
// What a run writes while it goes: metrics.jsonl, TensorBoard events, console lines.
#pragma once

#include <cstdint>
#include <fstream>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "compact/io/tensorboard.h"

namespace compact {

// A row of numbers of one step, in the order they are to be written.
using MetricsRow = std::vector<std::pair<std::string, double>>;

// The file `folder`/metrics.jsonl and the event file beside it.
class MetricsWriter {
 public:
  // Rows of steps above `last_step` that an interrupted run left are dropped first (-1: all), and
  // where that step is the run's last (`ends`) its evaluations, which come again.
  MetricsWriter(const std::string& folder, int64_t last_step, bool ends = false);
  // Appends one row; in the file when the call returns. Throws InputError where the disk is full.
  void write(int64_t step, const MetricsRow& row);

 private:
  std::string path_;
  std::ofstream file_;
  TensorBoardWriter events_;
};

// Lines on the console, and a progress bar where it is a terminal.
class Console {
 public:
  Console(std::ostream& out, bool terminal) : out_(out), terminal_(terminal) {}
  void line(const std::string& text);
  // Replaces the bar: "[=====>    ] 40/200  ETA 12s". Nothing where there is no terminal.
  void bar(int64_t done, int64_t total, const std::string& text);
  std::ostream& stream();

 private:
  void clear();
  std::ostream& out_;
  bool terminal_, bar_shown_ = false;
};

}  // namespace compact
