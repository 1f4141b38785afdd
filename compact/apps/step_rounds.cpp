// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/step_rounds.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <sstream>

#include "compact/apps/process.h"
#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {
namespace {

namespace fs = std::filesystem;

constexpr double kRoundSeconds = 1.5, kBusy = 0.05;

// Measures one round of a run.
ProcessResult measure(std::vector<std::string> arguments, RunReport& run) {
  const fs::path folder = fs::path(run.folder) / "measured";
  const double steps = std::ceil(kRoundSeconds / run.number("step_seconds"));
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  arguments.push_back(cat("--measure_steps=", 1 + std::llround(std::clamp(steps, 2.0, 100.0))));
  arguments.insert(arguments.end(), {"--output_dir", folder.string()});
  ProcessResult result = run_process(arguments, {}, /*silent=*/true);
  RunReport measured;
  if (result.exit_code == 0) read_run(folder, measured);
  const double seconds = measured.number("step_seconds");
  if (seconds > 0) run.rounds.push_back(seconds);
  fs::remove_all(folder, ignored);
  return result;
}

}  // namespace

CpuTimes cpu_times() {
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  CpuTimes times{.clock = now.count(), .machine = -1};
  std::ifstream in("/proc/stat");
  for (std::string line; std::getline(in, line) && line.starts_with("cpu");) {
    std::istringstream row(line);
    std::string name;
    double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, irq = 0, softirq = 0, steal = 0;
    row >> name >> user >> nice >> system >> idle >> waiting >> irq >> softirq >> steal;
    if (name != "cpu") {
      ++times.cores;
    } else if (row) {
      times.machine = (user + nice + system + irq + softirq + steal) /
                      static_cast<double>(sysconf(_SC_CLK_TCK));
    }
  }
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    struct rusage used {};
    getrusage(who, &used);
    for (const timeval& t : {used.ru_utime, used.ru_stime}) {
      times.own += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    }
  }
  return times;
}

OtherWork other_work(const CpuTimes& before, const CpuTimes& after) {
  const double passed = after.clock - before.clock;
  if (before.machine < 0 || after.machine < 0 || passed <= 0) return {};
  const double taken = (after.machine - before.machine) - (after.own - before.own);
  return {.cores = after.cores, .taken = std::max(0.0, taken / passed)};
}

std::string StepRounds::text() const {
  if (count == 0) return {};
  std::string text =
      cat("step time: median of ", count,
          " rounds in which the runs took turns; spread: slowest less fastest round");
  if (other.cores > 0) {
    text += formatted("; other work took %.2f of %.0f cores", other.taken, other.cores);
  }
  if (other.taken > kBusy * other.cores) {
    text +=
        "\nwarning: the machine was busy: on an idle one steps take less time, and a difference "
        "smaller than the spread says nothing";
  }
  return text + "\n";
}

StepRounds measure_rounds(int64_t count, const std::vector<std::vector<std::string>>& arguments,
                          std::vector<RunReport>& runs, std::ostream& errors) {
  StepRounds rounds;
  std::vector<bool> measured(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    measured[i] =
        !arguments[i].empty() && runs[i].exit_code == 0 && runs[i].number("step_seconds") > 0;
  }
  if (std::ranges::find(measured, true) == measured.end()) return rounds;
  const CpuTimes before = cpu_times();
  for (; rounds.count < count; ++rounds.count) {
    for (size_t i = 0; i < runs.size(); ++i) {
      if (!measured[i]) continue;
      const ProcessResult result = measure(arguments[i], runs[i]);
      if (result.signal != 0) {
        rounds.signal = result.signal;
        return rounds;
      }
      if (result.exit_code == 0) continue;
      errors << "warning: " << runs[i].preset << " could not be measured again (exit code "
             << result.exit_code << "): its step time is that of its training" << std::endl;
      measured[i] = false;
      runs[i].rounds.clear();
    }
    rounds.other = other_work(before, cpu_times());
  }
  return rounds;
}

}  // namespace compact
