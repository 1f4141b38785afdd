// SPDX-License-Identifier: Apache-2.0
#include "compact/train/run_state_json.h"

#include <nlohmann/json.hpp>

#include "compact/base/check.h"

namespace compact {
namespace {

using nlohmann::json;

// A count of at least 0. A number that is none, or past int64, is refused rather than converted.
int64_t count_of(const json& value, const char* name, const std::string& where) {
  COMPACT_CHECK(value.is_number_integer() && value >= 0 && value <= INT64_MAX, where, ": `", name,
                "` must be an integer from 0 to 2^63 - 1, is ", value.dump());
  return value.get<int64_t>();
}

}  // namespace

json run_state_to_json(const RunState& s) {
  return {{"step", s.step},
          {"micro", s.micro},
          {"valid", s.valid},
          {"window", {s.window.epoch, s.window.index}},
          {"tokens", s.tokens},
          {"step_loss", s.step_loss},
          {"interval_loss", s.interval_loss},
          {"interval_steps", s.interval_steps},
          {"total_loss", s.total_loss},
          {"rewards", s.rewards},
          {"seconds", s.seconds},
          {"matmul_path", s.matmul_path},
          {"machine", s.machine},
          {"base", s.base},
          {"reference", s.reference},
          {"bits", s.bits},
          {"ranks", s.ranks},
          {"best_step", s.best_step},
          {"best_value", s.best_value}};
}

RunState run_state_from_json(const json& j, const std::string& where) {
  RunState s;
  const auto count = [&](const char* name) { return count_of(j.at(name), name, where); };
  try {
    s.step = count("step");
    s.micro = count("micro");
    s.valid = count("valid");
    s.window = {count_of(j.at("window").at(0), "window", where),
                count_of(j.at("window").at(1), "window", where)};
    s.tokens = count("tokens");
    s.step_loss = j.at("step_loss");
    s.interval_loss = j.at("interval_loss");
    s.interval_steps = count("interval_steps");
    s.total_loss = j.at("total_loss");
    s.rewards = j.value("rewards", s.rewards);
    COMPACT_CHECK(s.rewards.empty() || s.rewards.size() == 4, where,
                  ": `rewards` must be 4 numbers or none, are ", s.rewards.size());
    s.seconds = j.at("seconds");
    s.matmul_path = j.at("matmul_path");
    s.machine = j.value("machine", "");
    s.base = j.value("base", "");
    s.reference = j.value("reference", "");
    s.bits = j.value("bits", "");
    if (j.contains("ranks")) s.ranks = count("ranks");
    if (j.contains("best_step")) {
      s.best_step = count("best_step");
      s.best_value = j.at("best_value");
    }
  } catch (const json::exception& e) {
    fail(where, ": not a trainer state of this program: ", e.what());
  }
  return s;
}

}  // namespace compact
