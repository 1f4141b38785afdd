// SPDX-License-Identifier: Apache-2.0
#include "compact/train/planning.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/prepare.h"
#include "compact/train/setup.h"

namespace compact {
namespace {

// "kB" lines of /proc/meminfo.
int64_t meminfo(const std::string& key) {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key + ":")) continue;
    std::istringstream rest(line.substr(key.size() + 1));
    int64_t kib = 0;
    rest >> kib;
    return kib * 1024;
  }
  return 0;
}

// The number in a file of the control group, or nullopt where there is none ("max").
std::optional<int64_t> number_in(const char* path) {
  std::ifstream in(path);
  int64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

}  // namespace

PlanRequest plan_request(const TrainConfig& c, const LlamaConfig& shape, const Policy& policy,
                         c10::DeviceType device) {
  PlanRequest r;
  r.shape = shape;
  r.policy = policy;
  r.dtype = dtype_of(c.dtype);
  r.optimizer = [c](const Policy& p) { return optimizer_options(c, p); };
  r.step = {.batch = c.per_device_train_batch_size,
            .length = c.block_size,
            .accumulation = c.gradient_accumulation_steps,
            .clip = c.max_grad_norm > 0};
  r.device = device;
  return r;
}

Speed speed_for(const TrainConfig& c, const PlanRequest& request, const StatedSpeed& stated) {
  if (request.device != c10::kCPU) return stated_speed(request, stated.products, stated.bytes);
  if (c.threads > 0) at::set_num_threads(static_cast<int>(c.threads));
  return measured_speed(request, c.cache_dir.empty() ? default_cache_folder() : c.cache_dir);
}

Chosen choose(const TrainConfig& c, const LlamaConfig& shape, c10::DeviceType device,
              const StatedSpeed& stated) {
  const PlanRequest request = plan_request(c, shape, Policy::preset("off"), device);
  return choose_policy(request, parse_bytes(c.budget).value(), Allowed::parse(c.allow),
                       speed_for(c, request, stated));
}

std::string choice_text(const Chosen& chosen, const PlanRequest& request) {
  const int64_t peak =
      request.device == c10::kCUDA ? chosen.plan.reserved : chosen.plan.memory.peak;
  char added[160];
  std::snprintf(added, sizeof added,
                "rebuilding takes %.1f %% of a predicted step of %.3g s (%.3g TFLOP more)",
                100 * chosen.added_seconds / chosen.seconds, chosen.seconds,
                chosen.added_products * 1e-12);
  std::string out = cat("auto     peak ", format_bytes(peak), ", ",
                        chosen.lossless ? "lossless" : "lossy", "; ", added, "\n");
  if (chosen.error > 0) {
    char error[120];
    std::snprintf(error, sizeof error,
                  "         mean relative error of the blocks' gradients %.2f\n", chosen.error);
    out += error;
  }
  for (const std::string& line : split(chosen.policy.str(), '\n')) {
    if (!line.empty()) out += "         " + line + "\n";
  }
  return out;
}

MemoryLimit memory_limit(const TrainConfig& c) {
  MemoryLimit limit{std::numeric_limits<int64_t>::max(), "none"};
  const auto consider = [&](int64_t bytes, const char* source) {
    if (bytes > 0 && bytes < limit.bytes) limit = {bytes, source};
  };
  consider(meminfo("MemAvailable"), "the machine's available memory");
  // Version 2, then 1, of control groups; what is in use already is not to be had.
  for (const auto& [most, now] :
       {std::pair("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        std::pair("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                  "/sys/fs/cgroup/memory/memory.usage_in_bytes")}) {
    if (const auto bytes = number_in(most)) {
      consider(*bytes - number_in(now).value_or(0), "the control group's memory limit");
    }
  }
  if (!c.budget.empty()) consider(parse_bytes(c.budget).value_or(0), "--budget");
  return limit;
}

void check_fits(const TrainConfig& c, const PlanRequest& request, const StepPlan& plan,
                const MemoryLimit& limit) {
  const int64_t peak = request.device == c10::kCUDA ? plan.reserved : plan.memory.peak;
  if (peak <= limit.bytes) return;
  const Speed speed = speed_for(c, request, {});
  const Allowed allowed = Allowed::parse(c.allow);
  const int64_t least = least_peak(request, allowed, speed);
  std::string other = least <= limit.bytes
                          ? cat("--preset auto --budget ", limit.bytes / (1 << 20), "MiB")
                          : ways_to_fit(request, limit.bytes, allowed, speed);
  throw BudgetError(
      cat("a step would take ", format_bytes(peak), " (", format_count(peak), " B, in ",
          plan.memory.at_peak.moment, "), more than the ", format_bytes(limit.bytes), " of ",
          limit.source, other.empty() ? "" : "; it would fit with " + other),
      least);
}

}  // namespace compact
