// SPDX-License-Identifier: Apache-2.0
#include "compact/train/planning.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/text/prepare.h"
#include "compact/io/checksum.h"
#include "compact/plan/gpu_card.h"
#include "compact/tasks/setup.h"
#include "compact/train/speed_file.h"

namespace compact {
namespace {

Policy all_kept() { return Policy::parse("slot * = keep", "timing"); }

// What seconds of segments depend on: the model but for its depth and vocabulary, sizes of weights
// and of one sample, types.
std::string timing_key(const TrainConfig& c, const Task& task) {
  TrainConfig one = c;
  one.per_device_train_batch_size = 1;
  const auto network = (task.smallest ? task.smallest : task.network)(one, all_kept(), at::kMeta);
  nlohmann::json model = task.config;
  for (const char* key : {"vocab_size", "num_hidden_layers"}) model.erase(key);
  std::string text = cat(task.inputs(one, at::kMeta, 1).inputs[0].sizes(), model.dump());
  for (const auto& [name, t] : network->named_tensors()) text += cat(" ", name, t.sizes());
  return cat(network->options().max_length, " ", c.dtype, " ", c.matmul_precision, " ", xxh3(text));
}

bool has_segments(const TrainConfig& c, const Task& task) {
  return !task.network(c, Policy::preset("off"), at::kMeta)->segments().empty();
}

std::unique_ptr<BudgetSearch> search_for(const TrainConfig& c, const Task& task,
                                         c10::DeviceType device, Allowed allowed,
                                         const Speed& speed) {
  return std::make_unique<BudgetSearch>(
      [c, &task, device](const Policy& p) { return step_request(c, task, p, device); }, allowed,
      speed);
}

SegmentGroups groups_of(const TrainConfig& c, const Task& task, c10::DeviceType device) {
  return SegmentGroups(step_request(c, task, all_kept(), device));
}

// What takes no time to find out, where only bytes matter.
Speed any_speed(const TrainConfig& c, const Task& task, c10::DeviceType device) {
  return stated_speed(groups_of(c, task, device), 1e12, 1e11);
}

// What a step takes at least under a configuration: with the policy, or any that is allowed.
struct Asked {
  TrainConfig config;
  Allowed allowed;
  const Policy* policy = nullptr;  // null: the best
};

// Bytes that a step takes whatever a search does with what it saves: weights, gradients where they
// are neither projected nor released one by one, and moments where these are not held in fewer
// bits.
int64_t fixed_bytes(const StepMemory& m, const Allowed& allowed, bool may_release) {
  return m.weights + (allowed.project || may_release ? 0 : m.gradients) +
         (allowed == Allowed() ? m.optimizer : 0);
}

// "--per_device_train_batch_size 4 (1.2 GiB); --dtype bfloat16 (2 GiB)": for each kind of milder
// setting, the first with which a step takes no more than so many bytes.
std::string milder_settings(const Asked& asked, const Task& task, c10::DeviceType device,
                            int64_t bytes) {
  std::string text;
  std::optional<StepMemory> memory;  // of a step where one is searched for
  const bool may_release =
      asked.config.gradient_accumulation_steps == 1 && asked.config.max_grad_norm <= 0;
  // What a step takes, or more than `bytes`; nothing where it would be refused.
  const auto peak_of = [&](const Asked& other) -> std::optional<int64_t> {
    try {
      // Most of what cannot help is known without a search.
      if (!other.policy && other.config.dtype == asked.config.dtype) {
        if (!memory)
          memory = plan_step(step_request(asked.config, task, all_kept(), device)).memory;
        const int64_t fixed = fixed_bytes(*memory, other.allowed, may_release);
        if (fixed > bytes) return fixed;
      }
      return other.policy
                 ? plan_step(step_request(other.config, task, *other.policy, device)).reserved
                 : search_for(other.config, task, device, other.allowed,
                              any_speed(other.config, task, device))
                       ->least_peak();
    } catch (const InputError&) {
      return std::nullopt;
    }
  };
  const auto offer = [&](const std::string& what, const Asked& other) {
    const std::optional<int64_t> peak = peak_of(other);
    if (!peak || *peak > bytes) return false;
    text += cat(text.empty() ? "" : "; ", what, other.policy ? " (" : " (from ",
                format_bytes(*peak), ")");
    return true;
  };
  // The first that fits of sizes that get smaller; none does where the last takes too much.
  const auto offer_size = [&](const std::string& option, int64_t TrainConfig::*member,
                              const std::vector<Asked>& sizes) {
    if (sizes.size() > 1 && peak_of(sizes.back()).value_or(0) > bytes) return;
    for (const Asked& other : sizes) {
      if (offer(cat(option, " ", other.config.*member), other)) return;
    }
  };
  const TrainConfig& c = asked.config;
  if (asked.policy) {
    for (const char* preset : {"exact", "gact-l1.1", "gact-l1", "gact-l1.2"}) {
      const Policy policy = Policy::preset(preset);
      Asked other = asked;
      other.policy = &policy;
      if (offer(cat("--preset ", preset), other)) break;
    }
  }
  std::vector<Asked> fewer, shorter;
  for (Asked other = asked; (other.config.per_device_train_batch_size /= 2) >= 1;) {
    fewer.push_back(other);
  }
  offer_size("--per_device_train_batch_size", &TrainConfig::per_device_train_batch_size, fewer);
  const auto size = [&](const TrainConfig& of) {
    return task.inputs(of, at::kMeta, 1).inputs[0].numel();
  };
  for (Asked other = asked; (other.config.block_size /= 2) >= 32 && size(other.config) < size(c);) {
    shorter.push_back(other);
  }
  offer_size("--block_size", &TrainConfig::block_size, shorter);
  if (dtype_of(c.dtype) == at::kFloat) {
    Asked half = asked;
    half.config.dtype = "bfloat16";
    offer("--dtype bfloat16", half);
  }
  if (!has_segments(c, task)) return text;
  const Allowed now = asked.allowed;
  for (const char* more : {"quantize", "project", "quantize,project"}) {
    const Asked other{.config = c, .allowed = Allowed::parse(cat(more, ",", now.str()))};
    const std::string what = cat(asked.policy ? "--preset auto " : "", "--allow ");
    if (other.allowed != now && offer(what + other.allowed.str(), other)) break;
  }
  return text;
}

}  // namespace

int64_t budget_of(const TrainConfig& c) {
  return parse_bytes(c.budget).value_or(std::numeric_limits<int64_t>::max());
}

StepRequest step_request(const TrainConfig& c, const Task& task, const Policy& policy,
                         c10::DeviceType device) {
  return {.network = [&task, c, policy](at::Device d) { return task.network(c, policy, d); },
          .micro_batch = [&task, c](
                             at::Device d,
                             int64_t) { return task.inputs(c, d, c.per_device_train_batch_size); },
          .resident = task.resident && device == c10::kCPU,
          .optimizer = optimizer_options(c, policy),
          .step = {.accumulation = c.gradient_accumulation_steps, .clip = c.max_grad_norm > 0},
          .device = device};
}

GpuRates gpu_rates(const TrainConfig& c, const StatedSpeed& stated) {
  const GpuCard& card = planned_card();
  const auto products = [&](double tflops) {
    return stated.products != 0 ? stated.products : kReachedProducts * tflops * 1e12;
  };
  const bool high = c.matmul_precision == "high";
  GpuRates rates{
      .half = products(card.half_tflops),
      .single = products(high ? card.tf32_tflops() : card.float_tflops),
      .bytes = stated.bytes != 0 ? stated.bytes : kReachedBytes * card.terabytes_a_second * 1e12,
      .host = kReachedBytes * card.host_gigabytes * 1e9};
  COMPACT_CHECK(rates.half > 0 && rates.bytes > 0,
                "--device_tflops and --device_gbps must be positive, are ", rates.half * 1e-12,
                " and ", rates.bytes * 1e-9);
  const auto source = [](double stated, double given, double part, const char* unit) {
    return stated != 0 ? formatted("%.4g %s as stated", stated, unit)
                       : formatted("%.0f %% of %.4g %s", 100 * part, given, unit);
  };
  const bool half = dtype_of(c.dtype) != at::kFloat;
  rates.source =
      cat(card.words, ", ",
          source(stated.products * 1e-12,
                 half   ? card.half_tflops
                 : high ? card.tf32_tflops()
                        : card.float_tflops,
                 kReachedProducts,
                 half   ? "TFLOP/s in bf16"
                 : high ? "TFLOP/s in TF32"
                        : "TFLOP/s in f32"),
          ", ", source(stated.bytes * 1e-9, card.terabytes_a_second * 1e3, kReachedBytes, "GB/s"));
  return rates;
}

std::vector<Operation> planned_operations(const TrainConfig& c, const Task& task,
                                          const Policy& policy) {
  std::vector<Operation> operations;
  plan_step(step_request(c, task, policy, c10::kCUDA), &operations);
  return operations;
}

Speed speed_for(const TrainConfig& c, const Task& task, c10::DeviceType device,
                const StatedSpeed& stated) {
  const SegmentGroups groups = groups_of(c, task, device);
  if (device != c10::kCPU) {
    const GpuRates rates = gpu_rates(c, stated);
    const bool half = dtype_of(c.dtype) != at::kFloat;
    Speed speed = stated_speed(groups, half ? rates.half : rates.single, rates.bytes);
    speed.source = rates.source;
    speed.gpu = rates;
    return speed;
  }
  if (c.threads > 0) at::set_num_threads(static_cast<int>(c.threads));
  const std::string folder = c.cache_dir.empty() ? default_cache_folder() : c.cache_dir;
  const auto remember = [&](const std::string& key, auto usable, auto measure) {
    return remembered_steps(folder, key, usable, measure);
  };
  return measured_speed(groups, timing_key(c, task), remember);
}

BudgetPlanner planner_for(const TrainConfig& c, const Task& task, c10::DeviceType device,
                          Allowed allowed, const Speed& speed) {
  return {search_for(c, task, device, allowed, speed), [c, &task, device, allowed](int64_t bytes) {
            return milder_settings({.config = c, .allowed = allowed}, task, device, bytes);
          }};
}

BudgetPlanner planner_for(const TrainConfig& c, const Task& task, c10::DeviceType device,
                          const StatedSpeed& stated) {
  COMPACT_CHECK(
      has_segments(c, task),
      "--preset auto chooses for networks that are made of segments, as language models, "
      "encoders and residual networks; other tasks take a --budget with any other preset");
  return planner_for(c, task, device, Allowed::parse(c.allow), speed_for(c, task, device, stated));
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
  const Allowed allowed = Allowed::parse(c.allow);
  try {
    if (c.preset != "auto" && has_segments(c, task) &&
        search_for(c, task, device, allowed, any_speed(c, task, device))->least_peak() <= bytes) {
      return cat("--preset auto --budget ", bytes, "B");
    }
  } catch (const InputError&) {  // what is allowed goes with no policy of this network
  }
  return milder_settings({.config = c, .allowed = allowed, .policy = &policy}, task, device, bytes);
}

void check_fits(const TrainConfig& c, const Task& task, const Policy& policy,
                c10::DeviceType device, const StepPlan& plan, const MemoryLimit& limit,
                bool resumed, bool advises) {
  const int64_t peak = plan.reserved;
  if (peak <= limit.bytes) return;
  const bool whole = plan.whole == peak;
  const std::string what =
      cat("a step would take ", format_bytes(peak), " (", format_count(peak), " B, ",
          whole ? "all weights, at the start and in evaluations"
                : cat("in ", str(plan.memory.at_peak.moment)),
          "), more than the ", format_bytes(limit.bytes), " of ", limit.source);
  if (resumed) throw BudgetError(what + "; a resumed run keeps its policy", peak);
  if (!advises) throw BudgetError(what, peak);
  const std::string other = settings_that_fit(c, task, policy, device, limit.bytes);
  throw BudgetError(what + (other.empty() ? "; neither other presets nor smaller batches would fit"
                                          : "; it would fit with " + other),
                    peak);
}

}  // namespace compact
