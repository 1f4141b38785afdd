// SPDX-License-Identifier: Apache-2.0
#include "compact/train/planning.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/text/prepare.h"
#include "compact/io/checksum.h"
#include "compact/kernels/gpu.h"
#include "compact/plan/gpu_speed.h"
#include "compact/plan/segment_search.h"
#include "compact/tasks/setup.h"

namespace compact {
namespace {

// Other presets and smaller batches, the mildest first.
std::string other_settings(const TrainConfig& c, const Task& task, const Policy& policy,
                           c10::DeviceType device, int64_t bytes) {
  std::string text;
  const auto offer = [&](const std::string& what, const TrainConfig& other, const Policy& p) {
    const int64_t peak = plan_step(step_request(other, task, p, device)).reserved;
    if (peak > bytes) return false;
    text += cat(text.empty() ? "" : "; ", what, " (", format_bytes(peak), ")");
    return true;
  };
  for (const char* preset : {"exact", "gact-l1.1", "gact-l1", "gact-l1.2"}) {
    if (offer(cat("--preset ", preset), c, Policy::preset(preset))) break;
  }
  TrainConfig fewer = c;
  while ((fewer.per_device_train_batch_size /= 2) >= 1) {
    if (offer(cat("--per_device_train_batch_size ", fewer.per_device_train_batch_size), fewer,
              policy)) {
      break;
    }
  }
  return text;
}

// What the batch that segments are timed on holds: pixels of three channels, or tokens.
constexpr int64_t kTimedPixels = int64_t{1} << 18, kTimedTokens = 2048;

int64_t timed_samples(const at::Tensor& sample) {
  const bool tokens = !sample.is_floating_point();
  const int64_t all = tokens ? kTimedTokens : 3 * kTimedPixels;
  return std::max<int64_t>(1, all / sample.numel());
}

// What seconds of segments depend on: sizes of weights and samples, types.
std::string timing_key(const TrainConfig& c, const Network& network, const at::Tensor& sample) {
  std::string text = cat(sample.sizes());
  for (const auto& [name, t] : network.named_tensors()) text += cat(" ", name, t.sizes());
  return cat(c.dtype, " ", c.matmul_precision, " ", xxh3(text));
}

// With what is known of the GPU in place of what nobody stated.
StatedSpeed known(const TrainConfig& c, const StatedSpeed& stated) {
  const GpuSpeed& gpu = gpu_speed(kernels::planned_gpu().name);
  const bool half = dtype_of(c.dtype) != at::kFloat, tf32 = c.matmul_precision == "high";
  const double tflops = half ? gpu.half_tflops : tf32 ? gpu.half_tflops / 2 : gpu.float_tflops;
  return {stated.products != 0 ? stated.products : kReachedProducts * tflops * 1e12,
          stated.bytes != 0 ? stated.bytes : kReachedBytes * gpu.terabytes_a_second * 1e12};
}

Speed segment_speed(const TrainConfig& c, const Task& task, c10::DeviceType device,
                    const StatedSpeed& stated) {
  const Policy kept = Policy::parse("slot * = keep", "timing");
  if (device != c10::kCPU) {
    const auto [products, bytes] = known(c, stated);
    return stated_speed(forward_work(step_request(c, task, kept, device)), products, bytes);
  }
  if (c.threads > 0) at::set_num_threads(static_cast<int>(c.threads));
  const auto network = task.network(kept, at::kMeta);
  const at::Tensor sample = task.inputs(at::kMeta, 1).inputs[0];
  TimedNetwork timed{.network = [&] { return task.network(kept, at::kCPU); },
                     .inputs = [&](int64_t n) { return task.inputs(at::kCPU, n).inputs; },
                     .samples = timed_samples(sample),
                     .batch = c.per_device_train_batch_size,
                     .key = timing_key(c, *network, sample)};
  for (const Segment* s : network->segments()) timed.steps.push_back(s->rerun().size());
  return measured_speed(timed, c.cache_dir.empty() ? default_cache_folder() : c.cache_dir);
}

bool has_segments(const Task& task) {
  return !task.network(Policy::preset("off"), at::kMeta)->segments().empty();
}

std::unique_ptr<BudgetSearch> segment_search(const TrainConfig& c, const Task& task,
                                             c10::DeviceType device, const StatedSpeed& stated,
                                             Allowed allowed) {
  COMPACT_CHECK(
      has_segments(task),
      "--preset auto chooses for language models, encoders and residual networks; other tasks take "
      "a --budget with any other preset");
  COMPACT_CHECK(!allowed.project, "--allow project is for language models");
  return std::make_unique<SegmentSearch>(
      [c, &task, device](const Policy& p) { return step_request(c, task, p, device); }, allowed,
      segment_speed(c, task, device, stated));
}

// What `auto` could do with, the mildest first: a smaller batch, fewer bits.
std::string ways_of_segments(const TrainConfig& c, const Task& task, c10::DeviceType device,
                             const StatedSpeed& stated, Allowed allowed, int64_t bytes) {
  std::string text;
  const auto offer = [&](const std::string& what, const TrainConfig& other, Allowed a) {
    const int64_t least = segment_search(other, task, device, stated, a)->least_peak();
    if (least > bytes) return false;
    text += cat(text.empty() ? "" : "; ", what, " (from ", format_bytes(least), ")");
    return true;
  };
  TrainConfig fewer = c;
  while ((fewer.per_device_train_batch_size /= 2) >= 1) {
    const std::string batch = std::to_string(fewer.per_device_train_batch_size);
    if (offer("--per_device_train_batch_size " + batch, fewer, allowed)) break;
  }
  if (!allowed.quantize) offer("--allow quantize", c, {.quantize = true});
  return text;
}

}  // namespace

int64_t budget_of(const TrainConfig& c) {
  return parse_bytes(c.budget).value_or(std::numeric_limits<int64_t>::max());
}

StepRequest step_request(const TrainConfig& c, const Task& task, const Policy& policy,
                         c10::DeviceType device) {
  return {.network = [&task, policy](at::Device d) { return task.network(policy, d); },
          .micro_batch = [&task, batch = c.per_device_train_batch_size](
                             at::Device d, int64_t) { return task.inputs(d, batch); },
          .resident = task.resident && device == c10::kCPU,
          .optimizer = optimizer_options(c, policy),
          .step = {.batch = c.per_device_train_batch_size,
                   .length = task.llama ? c.block_size : 1,
                   .accumulation = c.gradient_accumulation_steps,
                   .clip = c.max_grad_norm > 0},
          .device = device};
}

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
  if (request.device != c10::kCPU) {
    const auto [products, bytes] = known(c, stated);
    return stated_speed(request, products, bytes);
  }
  if (c.threads > 0) at::set_num_threads(static_cast<int>(c.threads));
  return measured_speed(request, c.cache_dir.empty() ? default_cache_folder() : c.cache_dir);
}

BudgetPlanner planner_for(const TrainConfig& c, const Task& task, c10::DeviceType device,
                          const StatedSpeed& stated) {
  const Allowed allowed = Allowed::parse(c.allow);
  if (task.llama) {
    const PlanRequest request = plan_request(c, *task.llama, Policy::preset("off"), device);
    return {request, allowed, speed_for(c, request, stated)};
  }
  return {segment_search(c, task, device, stated, allowed),
          [c, &task, device, stated, allowed](int64_t bytes) {
            return ways_of_segments(c, task, device, stated, allowed, bytes);
          }};
}

std::vector<std::string> choice_lines(const Chosen& chosen) {
  const int64_t peak = chosen.plan.reserved;
  const std::string added = formatted(
      "recomputation takes %.1f %% of a predicted step of %.3g s (%.3g GFLOP more)",
      100 * chosen.added_seconds / chosen.seconds, chosen.seconds, chosen.added_products * 1e-9);
  std::vector<std::string> lines = {cat("auto     peak ", format_bytes(peak), ", ",
                                        chosen.lossless ? "lossless" : "lossy", "; ", added)};
  if (chosen.error > 0) {
    lines.push_back(
        formatted("         mean relative error of the blocks' gradients %.2g", chosen.error));
  }
  return lines;
}

StepPlan plan_within(const TrainConfig& c, const Task& task, Policy& policy, c10::DeviceType device,
                     int64_t budget, std::string& note) {
  const auto plan_of = [&](const Policy& p) { return plan_step(step_request(c, task, p, device)); };
  StepPlan plan = plan_of(policy);
  Policy fewer = policy;
  while (plan.reserved > budget && fewer.halve_bits()) {
    StepPlan other = plan_of(fewer);
    if (other.reserved > budget) continue;
    note =
        cat("--budget ", c.budget, ": a step would take ", format_bytes(plan.reserved),
            " with preset ", c.preset, "; in fewer bits it takes ", format_bytes(other.reserved));
    policy = fewer;
    return other;
  }
  return plan;
}

std::string settings_that_fit(const TrainConfig& c, const Task& task, const Policy& policy,
                              c10::DeviceType device, int64_t bytes) {
  if (!task.llama) {
    std::string text = other_settings(c, task, policy, device, bytes);
    if (c.preset == "auto" || !has_segments(task)) return text;
    const int64_t least = segment_search(c, task, device, {}, {})->least_peak();
    if (least > bytes) return text;
    return cat("--preset auto --budget ", bytes, "B", text.empty() ? "" : "; ", text);
  }
  const PlanRequest request = plan_request(c, *task.llama, policy, device);
  const Speed speed = speed_for(c, request, {});
  const Allowed allowed = Allowed::parse(c.allow);
  return BudgetPlanner(request, allowed, speed).least_peak() <= bytes
             ? cat("--preset auto --budget ", bytes, "B")
             : ways_to_fit(request, bytes, allowed, speed);
}

void check_fits(const TrainConfig& c, const Task& task, const Policy& policy,
                c10::DeviceType device, const StepPlan& plan, const MemoryLimit& limit,
                bool resumed) {
  const int64_t peak = plan.reserved;
  if (peak <= limit.bytes) return;
  const std::string what = cat("a step would take ", format_bytes(peak), " (", format_count(peak),
                               " B, in ", plan.memory.at_peak.moment, "), more than the ",
                               format_bytes(limit.bytes), " of ", limit.source);
  if (resumed) throw BudgetError(what + "; a resumed run keeps its policy", peak);
  const std::string other = settings_that_fit(c, task, policy, device, limit.bytes);
  throw BudgetError(what + (other.empty() ? "; neither other presets nor smaller batches would fit"
                                          : "; it would fit with " + other),
                    peak);
}

}  // namespace compact
