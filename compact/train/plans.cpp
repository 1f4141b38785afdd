// SPDX-License-Identifier: Apache-2.0
#include "compact/train/plans.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/text/prepare.h"
#include "compact/io/checksum.h"
#include "compact/plan/gpu_card.h"
#include "compact/plan/train_step.h"
#include "compact/tasks/adapters.h"
#include "compact/tasks/setup.h"
#include "compact/train/speed_file.h"

namespace compact {
namespace {

Policy all_kept() { return Policy::parse("slot * = keep", "timing"); }

// A key of all that the seconds of segments depend on: the model but for its depth and vocabulary,
// sizes of weights and of one sample, types.
std::string timing_key(const TrainConfig& c, const Task& task) {
  const auto network = (task.smallest ? task.smallest : task.network)(c, all_kept(), at::kMeta);
  nlohmann::json model = task.config;
  for (const char* key : {"vocab_size", "num_hidden_layers"}) model.erase(key);
  std::string text = cat(task.inputs(c, at::kMeta, 1).inputs[0].sizes(), model.dump());
  for (const auto& [name, t] : network->named_tensors()) text += cat(" ", name, t.sizes());
  for (const auto& [name, t] : network->adapter_tensors()) text += cat(" ", name, t.sizes());
  if (lora_of(c).dropout > 0) text += " dropout before adapters";
  if (const auto& nf4 = network->options().nf4) text += nf4->nested ? " nested nf4" : " nf4";
  return cat(network->options().max_length, " ", c.dtype, " ", c.matmul_precision, " ", xxh3(text));
}

}  // namespace

Plans::Plans(const TrainConfig& config, const Task& task, c10::DeviceType device, int64_t ranks,
             const StatedSpeed& stated)
    : config_(std::make_shared<TrainConfig>(config)),
      task_(&task),
      device_(device),
      ranks_(ranks),
      stated_(stated) {}

Plans Plans::at(int64_t rank) const {
  Plans other = *this;
  other.rank_ = rank;
  return other;
}

Plans Plans::with(const TrainConfig& config) const {
  Plans other = *this;
  other.config_ = std::make_shared<TrainConfig>(config);
  return other;
}

int64_t Plans::budget() const {
  return parse_bytes(config_->budget).value_or(std::numeric_limits<int64_t>::max());
}

StepRequest Plans::request(const Policy& policy) const {
  const TrainConfig& c = *config_;
  std::shared_ptr<Group> group;
  if (ranks_ > 1) {
    group = planned_group(static_cast<int>(rank_), static_cast<int>(ranks_));
    if (c.deterministic_reduce) group->sum_in_a_tree();
  }
  return {.network = [config = config_, task = task_,
                      policy](at::Device d) { return task->network(*config, policy, d); },
          .micro_batch =
              [config = config_, task = task_](at::Device d, int64_t) {
                return task->inputs(*config, d, config->per_device_train_batch_size);
              },
          .resident = task_->resident && device_ == c10::kCPU,
          .optimizer = optimizer_options(c, policy, std::move(group)),
          .step = {.accumulation = c.gradient_accumulation_steps, .clip = c.max_grad_norm > 0},
          .device = device_};
}

StepPlan Plans::plan(const Policy& policy, std::vector<Operation>* operations) const {
  return plan_step(request(policy), operations);
}

StepPlan Plans::heaviest(const Policy& policy) const {
  if (ranks_ == 1 || config_->zero == 0) return at(0).plan(policy);
  constexpr size_t kMostPlanned = 8;  // of those that are dealt the most
  prepare_meta(device_);
  std::vector<int64_t> loads;
  {
    const StepRequest one = request(policy);
    const std::unique_ptr<Network> model = one.network(at::kMeta);
    Optimizer optimizer(model->trained(), one.optimizer);
    shard_weights(*model, optimizer);
    loads = optimizer.dealt_loads();
  }
  std::vector<int64_t> ranks(loads.size());
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  std::ranges::stable_sort(ranks, std::ranges::greater{},
                           [&](int64_t rank) { return loads[static_cast<size_t>(rank)]; });
  StepPlan most;
  for (const int64_t rank : std::span(ranks).first(std::min(ranks.size(), kMostPlanned))) {
    if (StepPlan own = at(rank).plan(policy); own.reserved > most.reserved) most = std::move(own);
  }
  return most;
}

StepPlan Plans::within_budget(Policy& policy, std::string& note) const {
  StepPlan plan = heaviest(policy);
  Policy fewer = policy;
  while (plan.reserved > budget() && fewer.halve_bits()) {
    StepPlan other = heaviest(fewer);
    if (other.reserved > budget()) continue;
    note = cat("--budget ", config_->budget, ": a step would take ", format_bytes(plan.reserved),
               " with preset ", config_->preset, "; in fewer bits it takes ",
               format_bytes(other.reserved));
    policy = fewer;
    return other;
  }
  return plan;
}

Chosen Plans::choose(bool advises) const {
  COMPACT_CHECK(
      has_segments(),
      "--preset auto chooses for networks that are made of segments, as language models, "
      "encoders and residual networks; other tasks take a --budget with any other preset");
  constexpr int kMostRounds = 4;
  Plans own = at(0);
  int64_t asked = budget();
  for (int round = 0;; ++round) {
    const Speed speed = own.speed();
    const std::unique_ptr<BudgetSearch> search = own.search(speed);
    std::optional<Chosen> chosen;
    if (round < kMostRounds && asked > 0) chosen = search->find(asked);
    if (chosen && device_ == c10::kCPU) chosen->speed = speed.source;
    if (!chosen) {
      const auto ways = [&] { return advises ? own.milder_settings(nullptr, budget()) : ""; };
      const Chosen one = search->choose(budget(), ways);
      throw BudgetError(cat("--budget ", config_->budget, ": what fits one of the ", ranks_,
                            " ranks does not fit another: a larger budget, or a smaller batch"),
                        one.plan.reserved);
    }
    if (ranks_ == 1) return std::move(*chosen);
    chosen->plan = heaviest(chosen->policy);
    const int64_t more = chosen->plan.reserved - budget();
    if (more <= 0) return std::move(*chosen);
    own = at(chosen->plan.rank);
    asked -= more;  // what is chosen may make yet another rank the heaviest
  }
}

Speed Plans::speed() const {
  const TrainConfig& c = *config_;
  if (device_ != c10::kCPU) {
    const GpuRates rates = gpu_rates(c.matmul_precision);
    const bool half = dtype_of(c.dtype) != at::kFloat;
    Speed speed = stated_speed(groups(), half ? rates.half : rates.single, rates.bytes);
    speed.source = rates.source;
    speed.gpu = rates;
    return speed;
  }
  if (c.threads > 0) at::set_num_threads(static_cast<int>(c.threads));
  const std::string folder = c.cache_dir.empty() ? default_cache_folder() : c.cache_dir;
  std::string origin;
  const auto remember = [&](const std::string& key, auto usable, auto measure) {
    return remembered_steps(folder, key, usable, measure, origin);
  };
  Speed speed = measured_speed(groups(), timing_key(c, *task_), remember);
  speed.source += ", " + origin;
  return speed;
}

GpuRates Plans::gpu_rates(const std::string& matmul_precision) const {
  const GpuCard& card = planned_card();
  const bool half = dtype_of(config_->dtype) != at::kFloat, high = matmul_precision == "high";
  const double single = high ? card.tf32_tflops() : card.float_tflops;
  GpuRates rates = reached_rates(card, high);
  if (stated_.products != 0) rates.half = rates.single = stated_.products;
  if (stated_.bytes != 0) rates.bytes = stated_.bytes;
  COMPACT_CHECK(rates.half > 0 && rates.bytes > 0,
                "--device_tflops and --device_gbps must be positive, are ", rates.half * 1e-12,
                " and ", rates.bytes * 1e-9);
  const auto source = [](double stated, double given, double part, const char* unit) {
    return stated != 0 ? formatted("%.4g %s as stated", stated, unit)
                       : formatted("%.0f %% of %.4g %s", 100 * part, given, unit);
  };
  rates.source =
      cat(card.words, ", ",
          source(stated_.products * 1e-12, half ? card.half_tflops : single, kReachedProducts,
                 half   ? "TFLOP/s in bf16"
                 : high ? "TFLOP/s in TF32"
                        : "TFLOP/s in f32"),
          ", ", source(stated_.bytes * 1e-9, card.terabytes_a_second * 1e3, kReachedBytes, "GB/s"));
  return rates;
}

bool Plans::has_segments() const {
  return !task_->network(*config_, Policy::preset("off"), at::kMeta)->segments().empty();
}

SegmentGroups Plans::groups() const { return SegmentGroups(request(all_kept())); }

std::unique_ptr<BudgetSearch> Plans::search(const Speed& speed) const {
  return std::make_unique<BudgetSearch>(
      [plans = *this](const Policy& p) { return plans.request(p); }, Allowed::parse(config_->allow),
      speed);
}

std::vector<std::string> choice_lines(const Chosen& chosen) {
  const int64_t peak = chosen.plan.reserved;
  const std::string added = formatted(
      "recomputation takes %.1f %% of a predicted step of %.3g s (%.3g GFLOP more)",
      100 * chosen.added_seconds / chosen.seconds, chosen.seconds, chosen.added_products * 1e-9);
  std::vector<std::string> lines = {cat("auto     peak ", format_bytes(peak), ", ",
                                        chosen.lossless ? "lossless" : "lossy", "; ", added,
                                        chosen.speed.empty() ? "" : "; speed: ", chosen.speed)};
  if (chosen.error > 0) {
    lines.push_back(
        formatted("         mean relative error of the blocks' gradients %.2g", chosen.error));
  }
  return lines;
}

}  // namespace compact
