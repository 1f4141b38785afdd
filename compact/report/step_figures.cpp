// SPDX-License-Identifier: Apache-2.0
#include "compact/report/step_figures.h"

#include <cmath>

#include "compact/base/text.h"

namespace compact {
namespace {

double units_per_second(const StepFigures& f) { return f.units / f.seconds; }

}  // namespace

MetricsRow step_row(const StepFigures& f) {
  MetricsRow row = {{"epoch", f.epoch},
                    {"loss", f.loss},
                    {"grad_norm", f.grad_norm},
                    {"learning_rate", f.learning_rate},
                    {f.unit + "_per_second", units_per_second(f)},
                    {"step_seconds", f.seconds},
                    {"memory/peak_bytes", static_cast<double>(f.peak_bytes)},
                    {"memory/held_bytes", static_cast<double>(f.held_bytes)},
                    {"memory/saved_bytes", static_cast<double>(f.saved_bytes)}};
  if (const auto& r = f.rewards; !r.empty()) {
    row.emplace_back("accuracy", r[2] / r[3]);
    row.emplace_back("margin", (r[0] - r[1]) / r[3]);
    row.emplace_back("reward_chosen", r[0] / r[3]);
    row.emplace_back("reward_rejected", r[1] / r[3]);
  }
  if (f.reserved_bytes) {
    row.emplace_back("memory/reserved_bytes", static_cast<double>(*f.reserved_bytes));
  }
  if (f.resident_bytes) {
    row.emplace_back("memory/resident_bytes", static_cast<double>(*f.resident_bytes));
  }
  return row;
}

std::string step_line(const StepFigures& f) {
  const auto& r = f.rewards;
  const std::string pairs =
      r.empty() ? "" : formatted("accuracy %.3f  margin %.3g  ", r[2] / r[3], (r[0] - r[1]) / r[3]);
  return formatted("step %*lld/%lld  loss %.4f  %sgrad %.3g  lr %.2e  %s %s/s  peak %s  ETA %s",
                   static_cast<int>(std::to_string(f.steps).size()), static_cast<long long>(f.step),
                   static_cast<long long>(f.steps), f.loss, pairs.c_str(), f.grad_norm,
                   f.learning_rate, format_count(std::llround(units_per_second(f))).c_str(),
                   f.unit == "tokens" ? "tok" : f.unit.c_str(), format_bytes(f.peak_bytes).c_str(),
                   format_duration(f.seconds * static_cast<double>(f.steps - f.step)).c_str());
}

}  // namespace compact
