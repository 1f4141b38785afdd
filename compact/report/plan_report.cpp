// SPDX-License-Identifier: Apache-2.0
#include "compact/report/plan_report.h"

#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/report/memory_table.h"

namespace compact {
namespace {

struct Row {
  const char* name;
  int64_t StepMemory::*bytes;
  const char* note;
};
// The rows of memory that lives from the beginning of a step; and below, that the step adds.
constexpr Row kFixed[] = {
    {"weights", &StepMemory::weights, ""},
    {"optimizer", &StepMemory::optimizer, "moments and master weights"},
    {"projections", &StepMemory::projections, "carriers, signs and indices"},
    {"other", &StepMemory::other, "tables and running statistics"},
};
constexpr Row kWhole[] = {
    {"gradients", &StepMemory::gradients, "of all parameters"},
    {"saved", &StepMemory::saved, "by the forward pass, all slots"},
};

std::string row(const std::string& name, int64_t bytes, const std::string& note) {
  return formatted("  %-24s %12s %18s  %s\n", name.c_str(), format_bytes(bytes).c_str(),
                   format_count(bytes).c_str(), note.c_str());
}

}  // namespace

std::string plan_table(const StepPlan& plan, c10::DeviceType device) {
  const StepMemory& m = plan.memory;
  std::string out = "\n" + slot_table(m.slots) + "\n";
  for (const Row& r : kFixed) out += row(r.name, m.*r.bytes, r.note);
  for (const auto& [name, bytes] : {std::pair("weights, outside", m.weights_outside),
                                    std::pair("optimizer, outside", m.outside)}) {
    if (bytes == 0) continue;
    out += row(name, bytes,
               device == c10::kCUDA ? "in the host's memory" : "in files of --offload_folder");
  }
  if (m.matrix_library > 0) {
    out += row("matrix library", m.matrix_library, "workspaces of cuBLAS, one for each thread");
  }
  for (const Row& r : kWhole) out += row(r.name, m.*r.bytes, r.note);
  out += "at the peak, in " + str(m.at_peak.moment) + "\n";
  out += row("before the step", m.fixed(), "");
  out += row("gradients", m.at_peak.gradients, "");
  out += row("saved", m.at_peak.saved, "");
  out += row("workspace", m.at_peak.workspace(), "");
  out += row("peak", m.peak, str(m.at_peak.moment));
  if (device == c10::kCUDA) {
    out += row("reserved", plan.reserved,
               "by the caching allocator, modelled; the driver's context is not in it");
    if (m.host.asked > 0) {
      out += row("host", m.host.asked,
                 cat("offloaded; pinned in powers of two: ", format_bytes(m.host.pinned)));
    }
  }
  return out;
}

std::string time_table(const StepTime& time, const GpuRates& rates) {
  const auto line = [](const TimePart& p) {
    return formatted("  %-16s %10.4g TFLOP %10.4g GB %10.4g ms  %s\n", p.name, p.products * 1e-12,
                     p.bytes * 1e-9, p.seconds * 1e3, p.what);
  };
  std::string out = cat("predicted time of a step; speed: ", rates.source, "\n");
  for (const TimePart& p : time.parts) out += line(p);
  TimePart all = time.total();
  all.what = "operations one by one, the longer of products and bytes; not what launching takes";
  return out + line(all);
}

std::string measured_table(const StepMemory& planned, const StepMemory& measured,
                           std::optional<int64_t> resident) {
  std::string out;
  const auto put = [&](const std::string& name, int64_t plan, int64_t real) {
    out += formatted("  %-24s %16s %16s %+14lld\n", name.c_str(), format_count(plan).c_str(),
                     format_count(real).c_str(), static_cast<long long>(real - plan));
  };
  out += formatted("  %-24s %16s %16s %14s\n", "bytes", "planned", "measured", "difference");
  for (const Row& r : kFixed) put(r.name, planned.*r.bytes, measured.*r.bytes);
  for (const Row& r : kWhole) put(r.name, planned.*r.bytes, measured.*r.bytes);
  put("workspace at the peak", planned.at_peak.workspace(), measured.at_peak.workspace());
  put("peak", planned.peak, measured.peak);
  if (resident) {
    out += formatted("  %-24s %16s %16s   %s\n", "process", "", format_count(*resident).c_str(),
                     "resident at most, all included");
  }
  return out + "  the peak is in " + str(measured.at_peak.moment) +
         (measured.at_peak.moment == planned.at_peak.moment
              ? ""
              : ", planned in " + str(planned.at_peak.moment)) +
         "\n";
}

nlohmann::ordered_json plan_json(const StepPlan& plan, c10::DeviceType device) {
  const StepMemory& m = plan.memory;
  nlohmann::ordered_json j;
  j["parameters"] = plan.parameters;
  j["weights_bytes"] = m.weights;
  j["weights_outside_bytes"] = m.weights_outside;
  j["gradients_bytes"] = m.gradients;
  j["optimizer_bytes"] = m.optimizer;
  j["optimizer_outside_bytes"] = m.outside;
  j["projections_bytes"] = m.projections;
  j["other_bytes"] = m.other;
  j["saved_bytes"] = m.saved;
  j["held_bytes"] = m.held;
  j["workspace_bytes"] = m.at_peak.workspace();
  j["peak_bytes"] = m.peak;
  j["peak_at"] = str(m.at_peak.moment);
  j["at_peak"] = {{"fixed_bytes", m.fixed()},
                  {"gradients_bytes", m.at_peak.gradients},
                  {"saved_bytes", m.at_peak.saved},
                  {"workspace_bytes", m.at_peak.workspace()}};
  if (device == c10::kCUDA) {
    j["matrix_library_bytes"] = m.matrix_library;
    j["reserved_bytes"] = plan.reserved;
    j["host_bytes"] = m.host.asked;
    j["host_pinned_bytes"] = m.host.pinned;
  }
  for (const auto& [moment, bytes] : m.moments) j["moments"][str(moment)] = bytes;
  j["slots"] = nlohmann::ordered_json::array();
  for (const SlotBytes& slot : m.slots) {
    j["slots"].push_back({{"name", slot.name},
                          {"treatment", slot.treatment},
                          {"stored_bytes", slot.stored},
                          {"if_kept_bytes", slot.if_kept}});
  }
  return j;
}

nlohmann::ordered_json launches_json(const StepLaunches& launches) {
  nlohmann::ordered_json j = {{"total", launches.total()}};
  for (const auto& [part, count] : launches.parts) j["parts"][part] = count;
  j["host_waits"] = StepLaunches::kWaits;
  return j;
}

nlohmann::ordered_json time_json(const StepTime& time, const GpuRates& rates) {
  nlohmann::ordered_json j = {{"speed", rates.source}, {"seconds", time.total().seconds}};
  j["parts"] = nlohmann::ordered_json::array();
  for (const TimePart& p : time.parts) {
    j["parts"].push_back(
        {{"name", p.name}, {"flops", p.products}, {"bytes", p.bytes}, {"seconds", p.seconds}});
  }
  return j;
}

}  // namespace compact
