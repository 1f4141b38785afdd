// SPDX-License-Identifier: Apache-2.0
// Settings that fit under a limit where the given ones do not, and the most that fits.
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/tasks/setup.h"
#include "compact/train/plans.h"

namespace compact {

// Made-up speeds: measuring takes time, and here only bytes are compared.
Speed Plans::any_speed() const { return stated_speed(groups(), 1e12, 1e11); }

// "--per_device_train_batch_size 4 (1.2 GiB); --dtype bfloat16 (2 GiB)": for each kind of milder
// setting, the first with which a step takes no more than so many bytes, with the policy or, where
// that is null, with the best.
std::string Plans::milder_settings(const Policy* policy, int64_t bytes) const {
  const TrainConfig& c = *config_;
  std::string text;
  // Bytes that no policy can save: weights where they have to lie here, gradients where they are
  // neither projected nor released one by one, and moments where nothing is allowed.
  std::optional<StepMemory> kept;
  const bool may_release = c.gradient_accumulation_steps == 1 && c.max_grad_norm <= 0;
  const auto fixed_bytes = [&](const Allowed& allowed) {
    if (!kept) kept = plan(Policy::parse("slot * = keep", "auto")).memory;
    return (allowed.disk || allowed.offload ? 0 : kept->weights) +
           (allowed.project || may_release ? 0 : kept->gradients) +
           (allowed == Allowed() ? kept->optimizer : 0);
  };
  // The peak of a step, or a number above `bytes`; nullopt where the step would be refused.
  const auto peak_of = [&](const TrainConfig& other, const Policy* p) -> std::optional<int64_t> {
    try {
      const Plans plans = with(other);
      if (p) return plans.plan(*p).reserved;
      // Most of what cannot help is known without a search.
      if (other.dtype == c.dtype) {
        const int64_t fixed = fixed_bytes(Allowed::parse(other.allow));
        if (fixed > bytes) return fixed;
      }
      return plans.search(plans.any_speed())->least_peak();
    } catch (const InputError&) {
      return std::nullopt;
    }
  };
  const auto offer = [&](const std::string& what, const TrainConfig& other, const Policy* p) {
    const std::optional<int64_t> peak = peak_of(other, p);
    if (!peak || *peak > bytes) return false;
    text += cat(text.empty() ? "" : "; ", what, p ? " (" : " (from ", format_bytes(*peak), ")");
    return true;
  };
  // Settings with a size that is halved as far as inputs get smaller.
  const auto halved = [&](const TrainConfig& from, int64_t TrainConfig::*member, int64_t least) {
    const auto numbers = [&](const TrainConfig& of) {
      return task_->inputs(of, at::kMeta, of.per_device_train_batch_size).inputs[0].numel();
    };
    std::vector<TrainConfig> sizes;
    for (TrainConfig other = from; (other.*member /= 2) >= least;) {
      if (numbers(other) < numbers(sizes.empty() ? from : sizes.back())) sizes.push_back(other);
    }
    return sizes;
  };
  // The first of them that fits; none does where the last takes too much.
  const auto offer_halved = [&](const char* option, int64_t TrainConfig::*member, int64_t least) {
    const std::vector<TrainConfig> sizes = halved(c, member, least);
    if (sizes.size() > 1 && peak_of(sizes.back(), policy).value_or(0) > bytes) return;
    for (const TrainConfig& other : sizes) {
      if (offer(cat("--", option, " ", other.*member), other, policy)) return;
    }
  };
  if (policy) {
    for (const char* preset : {"exact", "gact-l1.1", "gact-l1", "gact-l1.2"}) {
      const Policy other = Policy::preset(preset);
      if (offer(cat("--preset ", preset), c, &other)) break;
    }
  }
  offer_halved("per_device_train_batch_size", &TrainConfig::per_device_train_batch_size, 1);
  offer_halved("block_size", &TrainConfig::block_size, 32);
  TrainConfig other = c;
  if (dtype_of(c.dtype) == at::kFloat) {
    other.dtype = "bfloat16";
    offer("--dtype bfloat16", other, policy);
  }
  if (!has_segments()) return text;
  const char* const place = device_ == c10::kCUDA ? "offload" : "disk";
  for (const char* more : {place, "quantize", "project", "quantize,project"}) {
    other = c;
    other.allow = Allowed::parse(cat(more, ",", c.allow)).str();
    const std::string what = cat(policy ? "--preset auto " : "", "--allow ", other.allow);
    if (other.allow != Allowed::parse(c.allow).str() && offer(what, other, nullptr)) break;
  }
  // Where none is enough by itself: all of them, with the most samples and tokens that then fit.
  for (const char* more : {"quantize", "quantize,project"}) {
    if (!text.empty()) break;
    other = c;
    other.allow = Allowed::parse(cat(place, ",", more, ",", c.allow)).str();
    std::string what = cat(policy ? "--preset auto " : "", "--allow ", other.allow);
    if (dtype_of(c.dtype) == at::kFloat) what += cat(" --dtype ", other.dtype = "bfloat16");
    std::vector<TrainConfig> sizes = {other};
    const auto add_halved = [&](int64_t TrainConfig::*member, int64_t least) {
      const std::vector<TrainConfig> smaller = halved(sizes.back(), member, least);
      sizes.insert(sizes.end(), smaller.begin(), smaller.end());
    };
    add_halved(&TrainConfig::per_device_train_batch_size, 1);
    add_halved(&TrainConfig::block_size, 32);
    const auto too_much = [&](const TrainConfig& size) {
      return peak_of(size, nullptr).value_or(bytes + 1) > bytes;
    };
    if (too_much(sizes.back())) continue;
    const auto first = std::ranges::partition_point(sizes, too_much);
    if (first->per_device_train_batch_size != c.per_device_train_batch_size)
      what += cat(" --per_device_train_batch_size ", first->per_device_train_batch_size);
    if (first->block_size != c.block_size) what += cat(" --block_size ", first->block_size);
    offer(what, *first, nullptr);
  }
  return text;
}

// "; --preset tiled (1.2 GiB)": the fastest preset without loss with which a step takes no more
// than so many bytes; empty where none is.
std::string Plans::lossless_preset(int64_t bytes) const {
  for (const char* const preset : {"exact", "recompute", "tiled"}) {
    try {
      const int64_t peak = plan(Policy::preset(preset)).reserved;
      if (peak <= bytes) return cat("; --preset ", preset, " (", format_bytes(peak), ")");
    } catch (const InputError&) {  // it is for networks of another kind
    }
  }
  return "";
}

std::string Plans::settings_that_fit(const Policy& policy, int64_t bytes) const {
  try {
    if (config_->preset != "auto" && has_segments() && search(any_speed())->least_peak() <= bytes) {
      return cat("--preset auto --budget ", bytes, "B", lossless_preset(bytes));
    }
  } catch (const InputError&) {  // this network has no policy with what is allowed
  }
  return milder_settings(&policy, bytes);
}

void Plans::check_fits(const Policy& policy, const StepPlan& plan, const MemoryLimit& limit,
                       bool resumed, bool advises) const {
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
  const std::string other = at(plan.rank).settings_that_fit(policy, limit.bytes);
  throw BudgetError(what + (other.empty() ? "; neither other presets nor smaller batches would fit"
                                          : "; it would fit with " + other),
                    peak);
}

LargestBatch Plans::largest_batch(const Policy& policy) const {
  COMPACT_CHECK(!config_->budget.empty(), "--max_batch needs a --budget, as 10GiB");
  const bool automatic = config_->preset == "auto";
  int64_t fits = 0, too_many = 0;
  int64_t fits_peak = 0, too_many_peak = 0;
  const auto ask = [&](int64_t batch) {
    TrainConfig other = *config_;
    other.per_device_train_batch_size = batch;
    int64_t bytes = 0;
    try {
      bytes = automatic ? with(other).choose(/*advises=*/false).plan.reserved
                        : with(other).heaviest(policy).reserved;
    } catch (const BudgetError& e) {
      bytes = std::max(e.peak, budget() + 1);
    }
    (bytes <= budget() ? fits : too_many) = batch;
    (bytes <= budget() ? fits_peak : too_many_peak) = bytes;
    return bytes <= budget();
  };
  const int64_t most = std::min(int64_t{1} << 20, (int64_t{1} << 32) / task_->units);
  const std::string one =
      cat(task_->units > 1 ? cat(" x ", task_->units) : "", " ", task_->batch_unit());
  int64_t batch = 1;
  bool more = false;
  try {
    more = ask(batch);
  } catch (const InputError&) {  // batch norms need more than one value a channel
    more = ask(batch = 2);
  }
  while (more && 2 * batch <= most) more = ask(batch *= 2);
  if (fits == 0) {
    throw BudgetError(
        cat("--budget ", config_->budget, ": not even a batch of ", batch, one, " fits: it takes ",
            automatic ? "at least " : "", format_bytes(too_many_peak)),
        too_many_peak);
  }
  while (too_many_peak > 0 && too_many - fits > 1) ask(fits + (too_many - fits) / 2);
  std::string text =
      cat("max batch ", fits, one, ": peak ", format_bytes(fits_peak), " under ", config_->budget);
  text += too_many_peak > 0 ? cat("; ", too_many, " would take ", automatic ? "at least " : "",
                                  format_bytes(too_many_peak), "\n")
                            : "; larger ones were not tried\n";
  return {fits, text};
}

}  // namespace compact
