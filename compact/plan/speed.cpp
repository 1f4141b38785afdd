// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/speed.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/ops/cpu/bf16_products.h"
#include "compact/ops/functions/range_attention.h"

namespace compact {
namespace {

constexpr int kRounds = 3;
constexpr int64_t kMostSize = 1024;  // of a product that is timed

constexpr double kEnough = 0.1;  // seconds, after which nothing is run again

// Maps are timed in pairs: in training a channel needs more than one value.
bool are_maps(const SegmentSample& s) { return s.input.dim() == 4; }

template <class F>
double least_seconds(F run) {
  double least = 1e30, spent = 0;
  for (int i = 0; i < kRounds && spent < kEnough; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    least = std::min(least, seconds.count());
    spent += seconds.count();
  }
  return least;
}

bool positive(double x) { return std::isfinite(x) && x > 0; }

}  // namespace

double copied_bytes() {
  const at::Tensor from = at::zeros({16 << 20}, at::kFloat), to = at::zeros_like(from);
  return 2 * static_cast<double>(from.nbytes()) / least_seconds([&] { to.copy_(from); });
}

GpuRates reached_rates(const GpuCard& card, bool tf32) {
  const auto products = [](double tflops) { return kReachedProducts * tflops * 1e12; };
  return {.half = products(card.half_tflops),
          .single = products(tf32 ? card.tf32_tflops() : card.float_tflops),
          .bytes = kReachedBytes * card.terabytes_a_second * 1e12,
          .host = kReachedBytes * card.host_gigabytes * 1e9};
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

double product_rate(int64_t rows, int64_t inner, int64_t out, at::ScalarType type) {
  static std::mutex mutex;
  using Key = std::tuple<int64_t, int64_t, int64_t, at::ScalarType, int, Bf16Products>;
  static std::map<Key, double> known;
  const int64_t m = std::clamp<int64_t>(rows, 1, kMostSize),
                k = std::clamp<int64_t>(inner, 1, kMostSize),
                n = std::clamp<int64_t>(out, 1, kMostSize);
  const std::lock_guard lock(mutex);
  double& rate = known[{m, k, n, type, at::get_num_threads(), bf16_products()}];
  if (rate == 0) {
    const at::NoGradGuard no_grad;
    const auto options = at::device(at::kCPU).dtype(type);
    const at::Tensor x = at::full({m, k}, 0.01, options), w = at::full({n, k}, 0.01, options);
    rate = 2.0 * static_cast<double>(m * k * n) / least_seconds([&] { x.mm(w.t()); });
  }
  return rate;
}

SampleSeconds sample_seconds(const SegmentSample& s, std::span<const Work> work,
                             const std::vector<double>* part) {
  const FetchedWeights there(s.weights, /*backward=*/false);
  // Inputs are [samples, tokens, width], or maps of samples.
  std::vector<int64_t> sizes = s.input.sizes().vec();
  sizes[0] = are_maps(s) ? 2 : 1;
  const bool tokens = sizes.size() == 3;
  if (tokens) sizes[1] = std::min(sizes[1], kTimedTokens);
  // Ranges are those of the whole batch: here each row is one sequence, as long as the longest.
  if (s.pass.ranges.defined()) sizes[1] = std::min(sizes[1], longest_range(s.pass.ranges));
  const at::Tensor x = at::empty(sizes, s.input.options());
  const auto table = [&](const at::Tensor& t) {  // of a sequence, or of the whole batch
    return t.defined() ? t.narrow(0, 0, std::min(t.size(0), sizes[1])) : t;
  };
  SegmentPass pass{.training = s.pass.training,
                   .noise = s.pass.noise,
                   .cos = table(s.pass.cos),
                   .sin = table(s.pass.sin),
                   .products = s.pass.products};
  SegmentPass on_cpu = pass;
  on_cpu.cos = numbers_like(pass.cos);
  on_cpu.sin = numbers_like(pass.sin);
  if (s.pass.lengths.defined()) {
    pass.lengths = at::empty({1}, s.pass.lengths.options());
    on_cpu.lengths = at::full({1}, sizes[1], at::device(at::kCPU).dtype(at::kLong));
  }
  const auto product = [](const Work& w, const at::Tensor& y, at::ScalarType type) {
    const int64_t out = y.size(-1);
    return w.products / product_rate(y.numel() / std::max<int64_t>(out, 1), w.inner, out, type);
  };
  SampleSeconds result;
  result.part = part ? *part : s.segment->forward_seconds(x, s.weights, pass, on_cpu, product);
  const std::vector<Work> of_part = s.segment->work(x, s.weights, pass);
  for (size_t i = 0; i < work.size(); ++i) {
    const double factor = of_part[i].products > 0 ? work[i].products / of_part[i].products
                                                  : work[i].bytes / of_part[i].bytes;
    result.whole.push_back(result.part[i] * factor);
  }
  return result;
}

Speed measured_speed(const SegmentGroups& groups, const std::string& key, RememberSteps remember) {
  std::vector<const SegmentInfo*> kinds;  // the first segment of each group
  for (const SegmentInfo& s : groups.segments()) {
    if (s.group == kinds.size()) kinds.push_back(&s);
  }
  const auto usable = [&](const MeasuredSteps& m) {
    if (!positive(m.bytes) || m.segments.size() != kinds.size()) return false;
    if (groups.head().defined() && !positive(m.products)) return false;
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (m.segments[i].size() != kinds[i]->work.size() ||
          !std::ranges::all_of(m.segments[i], positive)) {
        return false;
      }
    }
    return true;
  };
  const auto measure = [&] {
    MeasuredSteps m;
    for (size_t i = 0; i < kinds.size(); ++i) {
      m.segments.push_back(sample_seconds(groups.samples()[i], kinds[i]->work).part);
    }
    m.bytes = copied_bytes();
    if (const at::Tensor& w = groups.head(); w.defined()) {
      m.products = product_rate(groups.tokens(), w.size(1), w.size(0), w.scalar_type());
    }
    return m;
  };
  const bool converted = bf16_products() == Bf16Products::kConverted;
  const MeasuredSteps measured =
      remember(cat("cpu ", at::get_cpu_capability(), " ", at::get_num_threads(), " threads ",
                   converted ? "all bf16 in f32 " : "",
                   std::ranges::any_of(groups.samples(), are_maps) ? "two samples " : "", key),
               usable, measure);
  Speed speed{.source = cat("measured on this machine, ", at::get_num_threads(), " threads"),
              .bytes_per_second = measured.bytes};
  for (size_t i = 0; i < kinds.size(); ++i) {
    speed.segments.push_back(
        sample_seconds(groups.samples()[i], kinds[i]->work, &measured.segments[i]).whole);
  }
  if (groups.head().defined()) speed.head = groups.head_products() / measured.products;
  return speed;
}

double step_seconds(const SegmentGroups& groups, const StepShape& step, const Speed& speed,
                    const StepMemory& m) {
  double forward = speed.head;
  for (const SegmentInfo& s : groups.segments()) {
    for (const double seconds : speed.segments[s.group]) forward += seconds;
  }
  const auto bytes = static_cast<double>(2 * (m.weights + m.weights_outside) + m.gradients +
                                         2 * (m.optimizer + m.outside) +
                                         4 * step.accumulation * m.weights_outside);  // copies
  return 3 * forward * static_cast<double>(step.accumulation) + bytes / speed.bytes_per_second;
}

}  // namespace compact
