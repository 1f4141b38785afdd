// SPDX-License-Identifier: Apache-2.0
#include "compact/report/metrics.h"

#include <fcntl.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"

namespace compact {
namespace {

// Rewrites the file without rows above `last_step`, without a row that was cut off, and, if `ends`,
// without rows of that step that are not of training.
void drop_later_rows(const std::string& path, int64_t last_step, bool ends) {
  std::ifstream in(path);
  if (!in) return;
  std::string kept, line;
  while (std::getline(in, line)) {
    const auto row = nlohmann::json::parse(line, nullptr, false);
    if (!row.is_object() || !row.contains("step") || !row["step"].is_number_integer()) continue;
    const auto step = row["step"].get<int64_t>();
    if (step < last_step || (step == last_step && (!ends || row.contains("loss")))) {
      kept += line + "\n";
    }
  }
  write_file_atomically(path, kept);
}

AppendedFile open_rows(const std::string& path) {
  FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (fd.get() < 0) fail_with_errno(path, "cannot open");
  return {std::move(fd), path};
}

}  // namespace

bool or_warn(Console& console, const std::string& what, FunctionRef<void()> write) {
  try {
    write();
    return true;
  } catch (const InputError& e) {
    console.line(cat("warning: the run goes on without ", what, ": ", e.what()));
    return false;
  }
}

MetricsWriter::MetricsWriter(const std::string& folder, int64_t last_step, bool ends,
                             Console& console)
    : console_(console), events_(folder) {
  const std::string path = folder + "/metrics.jsonl";
  drop_later_rows(path, last_step, ends);
  file_ = open_rows(path);
}

void MetricsWriter::write(int64_t step, const MetricsRow& row) {
  nlohmann::ordered_json json;
  json["step"] = step;
  std::vector<std::pair<std::string, float>> scalars;
  for (const auto& [name, value] : row) {
    if (std::abs(value) < 1e15 && value == static_cast<double>(static_cast<int64_t>(value))) {
      json[name] = static_cast<int64_t>(value);
    } else {
      json[name] = value;
    }
    scalars.emplace_back(name.find('/') == name.npos ? "train/" + name : name,
                         static_cast<float>(value));
  }
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  waiting_.push_back({step, now.count(), json.dump() + "\n", std::move(scalars)});
  try {
    flush();
  } catch (const InputError& e) {
    if (waiting_.size() > 1) return;
    console_.line(cat("warning: ", e.what(), "; figures wait until they can be written"));
  }
}

MetricsWriter::~MetricsWriter() {
  try {
    flush();
  } catch (const InputError&) {
  }
}

void MetricsWriter::flush() {
  for (; lines_ < waiting_.size(); ++lines_) file_.append(waiting_[lines_].line);
  for (; scalars_ < waiting_.size(); ++scalars_) {
    const Row& row = waiting_[scalars_];
    events_.write(row.step, row.scalars, row.time);
  }
  waiting_.clear();
  lines_ = scalars_ = 0;
}

// Clears a failed state (output into a file on a full disk), so that each line tries again.
void Console::clear() {
  out_.clear();
  if (bar_shown_) out_ << "\r\033[K";
  bar_shown_ = false;
}

std::ostream& Console::stream() {
  clear();
  return out_;
}

void Console::line(const std::string& text) {
  clear();
  out_ << text << "\n" << std::flush;
}

void Console::bar(int64_t done, int64_t total, const std::string& text) {
  if (!terminal_) return;
  constexpr int kWidth = 24;
  const int full = total > 0 ? static_cast<int>(kWidth * done / total) : 0;
  out_ << "\r\033[K[" << std::string(full, '=') << std::string(kWidth - full, ' ') << "] " << done
       << "/" << total << "  " << text << std::flush;
  bar_shown_ = true;
}

}  // namespace compact
