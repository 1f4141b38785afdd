// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/speed.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/file.h"

namespace compact {
namespace {

constexpr int kRounds = 3;
constexpr int64_t kHeadRows = 4096, kHeadTokens = 2048;  // of the product that is timed

template <class F>
double least_seconds(F run) {
  double least = 1e30;
  for (int i = 0; i < kRounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    least = std::min(
        least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return least;
}

using nlohmann::json;

// What was measured under `key` in `folder`/speed.json, where `usable` takes it, else what
// `measure` gives, which is then remembered.
json remembered(const std::string& folder, const std::string& key,
                FunctionRef<bool(const json&)> usable, FunctionRef<json()> measure) {
  const std::filesystem::path file = std::filesystem::path(folder) / "speed.json";
  json all = json::object(), entry;
  if (!folder.empty() && is_file(file)) {
    try {
      all = json::parse(read_text(file, int64_t{1} << 24), nullptr, /*allow_exceptions=*/false);
    } catch (const InputError&) {  // cannot be read: made anew
    }
    if (!all.is_object()) all = json::object();
    entry = all.value(key, json());
  }
  if (entry.is_object() && usable(entry)) return entry;
  entry = measure();
  if (folder.empty()) return entry;
  all[key] = entry;
  try {
    std::filesystem::create_directories(folder);
    write_file_atomically(file, all.dump(1) + "\n");
  } catch (const std::exception&) {  // not remembered, then
  }
  return entry;
}

bool positive(const json& object, const char* key) {
  const auto one = [](const json& x) {
    return x.is_number() && std::isfinite(x.get<double>()) && x.get<double>() > 0;
  };
  if (!object.contains(key)) return false;
  const json& value = object[key];
  return value.is_array() ? std::ranges::all_of(value, one) : one(value);
}

// Read and written, a second.
double copied_bytes() {
  const at::Tensor from = at::zeros({16 << 20}, at::kFloat), to = at::zeros_like(from);
  return 2 * static_cast<double>(from.nbytes()) / least_seconds([&] { to.copy_(from); });
}

}  // namespace

Speed stated_speed(const SegmentGroups& groups, double products, double bytes) {
  COMPACT_CHECK(products > 0 && bytes > 0,
                "--device_tflops and --device_gbps must be positive, are ", products * 1e-12,
                " and ", bytes * 1e-9);
  Speed speed{.source = cat("stated: ", products * 1e-12, " TFLOP/s, ", bytes * 1e-9, " GB/s"),
              .head = groups.head_products() / products,
              .bytes_per_second = bytes};
  for (const SegmentInfo& s : groups.segments()) {
    if (s.group < speed.segments.size()) continue;
    auto& seconds = speed.segments.emplace_back();
    for (const Work& w : s.work)
      seconds.push_back(std::max(w.products / products, w.bytes / bytes));
  }
  return speed;
}

Speed measured_speed(const SegmentGroups& groups, const TimedNetwork& timed,
                     const std::string& folder) {
  const SegmentGroups small(timed.request);
  COMPACT_CHECK(small.samples().size() == groups.samples().size(),
                "[plan] the network to time has ", small.samples().size(),
                " kinds of segments, not ", groups.samples().size());
  std::vector<size_t> steps;  // of each group
  std::vector<std::string> names;
  for (const SegmentInfo& s : small.segments()) {
    if (s.group < steps.size()) continue;
    steps.push_back(s.work.size());
    names.push_back(s.name);
  }
  const auto usable = [&](const json& e) {
    if (!positive(e, "bytes") || !e.contains("segments") || !e["segments"].is_array() ||
        e["segments"].size() != steps.size() || (groups.head() && !positive(e, "products"))) {
      return false;
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      const json segment = {{"steps", e["segments"][i]}};
      if (!segment["steps"].is_array() || segment["steps"].size() != steps[i] ||
          !positive(segment, "steps")) {
        return false;
      }
    }
    return true;
  };
  const auto measure = [&] {
    const at::NoGradGuard no_grad;
    std::vector<std::vector<double>> segments;
    const auto see = [&](const Segment& s, const at::Tensor& x, Weights weights,
                         const SegmentPass&) {
      if (segments.size() == names.size() || s.name() != names[segments.size()]) return;
      segments.push_back(s.forward_seconds(x, weights, kRounds));
    };
    const auto network = timed.request.network(at::kCPU);
    const StepInputs batch = timed.request.micro_batch(at::kCPU, 0);
    network->each_segment(batch.inputs, batch.target, {}, see);
    json entry = {{"segments", segments}, {"bytes", copied_bytes()}};
    if (const Parameter* head = groups.head()) {
      const int64_t n = head->weight.size(1);
      const auto options = at::device(at::kCPU).dtype(head->weight.dtype());
      const at::Tensor rows = at::ones({kHeadTokens, n}, options),
                       matrix = at::ones({kHeadRows, n}, options);
      const double seconds = least_seconds([&] { rows.mm(matrix.t()); });
      entry["products"] = 2.0 * static_cast<double>(kHeadTokens * kHeadRows * n) / seconds;
    }
    return entry;
  };
  const std::string key = cat("cpu ", at::get_num_threads(), " threads ", timed.key);
  const json entry = remembered(folder, key, usable, measure);
  Speed speed{.source = cat("measured on this machine, ", at::get_num_threads(), " threads"),
              .segments = entry["segments"].get<std::vector<std::vector<double>>>(),
              .bytes_per_second = entry["bytes"]};
  if (groups.head()) speed.head = groups.head_products() / entry["products"].get<double>();
  for (auto& segment : speed.segments) {
    for (double& s : segment) s *= timed.scale;
  }
  return speed;
}

double step_seconds(const SegmentGroups& groups, const StepShape& step, const Speed& speed,
                    const StepMemory& m) {
  double forward = speed.head;
  for (const SegmentInfo& s : groups.segments()) {
    for (const double seconds : speed.segments[s.group]) forward += seconds;
  }
  const auto bytes = static_cast<double>(2 * m.weights + m.gradients + 2 * m.optimizer);
  return 3 * forward * static_cast<double>(step.accumulation) + bytes / speed.bytes_per_second;
}

}  // namespace compact
