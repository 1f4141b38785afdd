// SPDX-License-Identifier: Apache-2.0
#include "compact/cli/planning_line.h"

#include <chrono>
#include <cstdlib>
#include <iostream>

#include "compact/base/text.h"

namespace compact::cli {
namespace {

std::chrono::milliseconds patience() {
  const char* const given = std::getenv("COMPACT_PLANNING_LINE_AFTER");
  return std::chrono::milliseconds(parse_integer(given ? given : "").value_or(1000));
}

}  // namespace

PlanningLine::PlanningLine(const TrainConfig& c) {
  const std::string line = "planning " + (c.model.empty() ? c.model_name_or_path : c.model) +
                           (c.preset == "auto" ? ": looks for the policy to take" : "");
  const auto say = [line]() -> void { (std::cerr << "compact: " + line + "\n").flush(); };
  const auto after = patience();
  if (after.count() <= 0) {
    say();
    return;
  }
  waiting_ = std::thread([this, after, say] {
    std::unique_lock lock(mutex_);
    if (!ends_.wait_for(lock, after, [this] { return over_; })) say();
  });
}

PlanningLine::~PlanningLine() {
  if (!waiting_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  ends_.notify_one();
  waiting_.join();
}

}  // namespace compact::cli
