// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/speed.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "compact/base/check.h"

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

bool positive(double x) { return std::isfinite(x) && x > 0; }

}  // namespace

double copied_bytes() {
  const at::Tensor from = at::zeros({16 << 20}, at::kFloat), to = at::zeros_like(from);
  return 2 * static_cast<double>(from.nbytes()) / least_seconds([&] { to.copy_(from); });
}

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
                     RememberSteps remember) {
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
  const auto usable = [&](const MeasuredSteps& m) {
    if (!positive(m.bytes) || m.segments.size() != steps.size()) return false;
    if (groups.head() && !positive(m.products)) return false;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (m.segments[i].size() != steps[i] || !std::ranges::all_of(m.segments[i], positive)) {
        return false;
      }
    }
    return true;
  };
  const auto measure = [&] {
    const at::NoGradGuard no_grad;
    MeasuredSteps m;
    const auto see = [&](const Segment& s, const at::Tensor& x, Weights weights,
                         const SegmentPass&) {
      if (m.segments.size() == names.size() || s.name() != names[m.segments.size()]) return;
      m.segments.push_back(s.forward_seconds(x, weights, kRounds));
    };
    const auto network = timed.request.network(at::kCPU);
    const StepInputs batch = timed.request.micro_batch(at::kCPU, 0);
    network->each_segment(batch.inputs, batch.target, {}, see);
    m.bytes = copied_bytes();
    if (const Parameter* head = groups.head()) {
      const int64_t n = head->weight.size(1);
      const auto options = at::device(at::kCPU).dtype(head->weight.dtype());
      const at::Tensor rows = at::ones({kHeadTokens, n}, options),
                       matrix = at::ones({kHeadRows, n}, options);
      const double seconds = least_seconds([&] { rows.mm(matrix.t()); });
      m.products = 2.0 * static_cast<double>(kHeadTokens * kHeadRows * n) / seconds;
    }
    return m;
  };
  const std::string key = cat("cpu ", at::get_num_threads(), " threads ", timed.key);
  MeasuredSteps measured = remember(key, usable, measure);
  Speed speed{.source = cat("measured on this machine, ", at::get_num_threads(), " threads"),
              .segments = std::move(measured.segments),
              .bytes_per_second = measured.bytes};
  if (groups.head()) speed.head = groups.head_products() / measured.products;
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
