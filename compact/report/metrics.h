// SPDX-License-Identifier: Apache-2.0
// The output of a training run: console lines, metrics.jsonl, TensorBoard events.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "compact/base/file.h"
#include "compact/base/function_ref.h"
#include "compact/io/tensorboard.h"

namespace compact {

// A row of numbers of one step, in the order they are to be written.
using MetricsRow = std::vector<std::pair<std::string, double>>;

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

// Calls write(). If that fails (the disk is full, ...) prints a warning that names `what` and
// returns false: the run goes on, since a later write may succeed.
bool or_warn(Console& console, const std::string& what, FunctionRef<void()> write);

// The file `folder`/metrics.jsonl and the event file beside it.
class MetricsWriter {
 public:
  // First drops rows of steps above `last_step` that an interrupted run left (-1: all), and, where
  // that step is the run's last (`ends`), its evaluations, which are made again.
  MetricsWriter(const std::string& folder, int64_t last_step, bool ends, Console& console);
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;
  ~MetricsWriter();  // tries once more
  // Appends one row, which is in the files when the call returns. A row that cannot be written is
  // kept and written with a later one; the first such row gives a warning.
  void write(int64_t step, const MetricsRow& row);
  // Throws InputError where rows still cannot be written.
  void flush();

 private:
  struct Row {
    int64_t step;
    double time;  // seconds since 1970
    std::string line;
    std::vector<std::pair<std::string, float>> scalars;
  };

  Console& console_;
  AppendedFile file_;
  TensorBoardWriter events_;
  std::vector<Row> waiting_;
  size_t lines_ = 0, scalars_ = 0;  // of waiting_, already in each file
};

}  // namespace compact
