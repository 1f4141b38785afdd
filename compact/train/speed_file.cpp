// SPDX-License-Identifier: Apache-2.0
#include "compact/train/speed_file.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/file.h"

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

}  // namespace

MeasuredSteps remembered_steps(const std::string& folder, const std::string& key,
                               FunctionRef<bool(const MeasuredSteps&)> usable,
                               FunctionRef<MeasuredSteps()> measure) {
  if (folder.empty()) return measure();
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
      if (usable(known)) return known;
    } catch (const json::exception&) {  // of another form: made again
    }
  }
  MeasuredSteps made = measure();
  all[key] = to_json(made);
  try {
    std::filesystem::create_directories(folder);
    write_file_atomically(file, all.dump(1) + "\n");
  } catch (const std::exception&) {  // not remembered, then
  }
  return made;
}

}  // namespace compact
