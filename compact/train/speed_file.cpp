// SPDX-License-Identifier: Apache-2.0
#include "compact/train/speed_file.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/text.h"

namespace compact {
namespace {

using nlohmann::json;

// Throws json::exception where something is of another type.
MeasuredSteps from(const json& entry) {
  return {.segments = entry.at("segments").get<std::vector<std::vector<double>>>(),
          .products = entry.value("products", 0.0),
          .bytes = entry.at("bytes").get<double>()};
}

json to_json(const MeasuredSteps& m) {
  json entry = {{"segments", m.segments}, {"bytes", m.bytes}};
  if (m.products > 0) entry["products"] = m.products;
  return entry;
}

int64_t seconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// The first "model name" that Linux gives; empty where it gives none.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return std::string(trim(line.substr(line.find(':') + 1)));
  }
  return "";
}

constexpr int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour, kOld = 30 * kDay;

std::string ago(int64_t seconds) {
  const auto of = [](int64_t count, const char* unit) {
    return cat(count, " ", unit, count == 1 ? " ago" : "s ago");
  };
  if (seconds < kMinute) return "now";
  if (seconds < kHour) return of(seconds / kMinute, "minute");
  if (seconds < kDay) return of(seconds / kHour, "hour");
  return of(seconds / kDay, "day");
}

std::string origin_of(const std::filesystem::path& file, int64_t age) {
  return age <= kOld ? cat(ago(age), " (", file.string(), ")")
                     : cat(ago(age), ", which is long: delete ", file.string(),
                           " to have it measured again");
}

}  // namespace

MeasuredSteps remembered_steps(const std::string& folder, const std::string& key,
                               FunctionRef<bool(const MeasuredSteps&)> usable,
                               FunctionRef<MeasuredSteps()> measure, std::string& origin) {
  origin = "now";
  if (folder.empty()) return measure();
  const int64_t now = seconds_since_1970();
  const std::string processor = processor_name();
  const std::filesystem::path file = std::filesystem::path(folder) / "speed.json";
  json all = json::object();
  if (is_file(file)) {
    try {
      all = json::parse(read_text(file, int64_t{1} << 24), nullptr, /*allow_exceptions=*/false);
    } catch (const InputError&) {  // cannot be read: made again
    }
    if (!all.is_object()) all = json::object();
  }
  if (all.contains(key)) {
    try {
      MeasuredSteps known = from(all[key]);
      if (usable(known) && all[key].at("processor").get<std::string>() == processor) {
        origin = origin_of(file, now - all[key].at("measured").get<int64_t>());
        return known;
      }
    } catch (const json::exception&) {  // of another form: made again
    }
  }
  MeasuredSteps made = measure();
  all[key] = to_json(made);
  all[key]["measured"] = now;
  all[key]["processor"] = processor;
  try {
    std::filesystem::create_directories(folder);
    write_file_atomically(file, all.dump(1) + "\n");
    origin = origin_of(file, 0);
  } catch (const std::exception&) {  // not remembered, then
  }
  return made;
}

}  // namespace compact
