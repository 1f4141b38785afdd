// SPDX-License-Identifier: Apache-2.0
#include "compact/python/layer_search.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "compact/base/check.h"
#include "compact/plan/speed.h"

namespace compact {
namespace {

// Seconds of each step where rates are known: of products, and of bytes that are copied.
std::vector<double> stated(const SegmentInfo& info, double products, double bytes) {
  std::vector<double> seconds;
  for (const Work& w : info.work) {
    seconds.push_back(std::max(w.products / products, w.bytes / bytes));
  }
  return seconds;
}

}  // namespace

LayerSearch::LayerSearch(const std::vector<BlockPtr>& blocks, double products, double bytes,
                         bool round) {
  COMPACT_CHECK(!blocks.empty(), "no layers to choose for");
  struct Kind {
    SegmentInfo info;
    Block::Call call;
    std::vector<double> seconds;
    double forward = 0;
  };
  std::map<std::string, Kind> kinds;
  std::vector<SegmentInfo> infos;
  std::vector<std::string> keys;
  const double copied = bytes > 0 ? bytes : copied_bytes();
  for (const BlockPtr& block : blocks) {
    Block::Call call = block->last_call();
    const SegmentSample& s = call.sample;
    std::string key;
    std::vector<double> seconds;
    {
      const FetchedWeights there(s.weights, /*backward=*/false);  // cast ones have sizes then
      infos.push_back(segment_info(*s.segment, s.input, s.weights, s.pass, {}));
      key = signature(infos.back(), s) + block->kind();
      for (const auto& entry : block->numbers()) key += cat(" ", entry.key(), "=", entry.value());
      if (!kinds.contains(key)) {
        seconds = products > 0 ? stated(infos.back(), products, copied)
                               : sample_seconds(s, infos.back().work).whole;
      }
    }
    if (!kinds.contains(key)) {
      const double forward = std::accumulate(seconds.begin(), seconds.end(), 0.0);
      kinds.emplace(key, Kind{infos.back(), std::move(call), std::move(seconds), forward});
    }
    forward_ += kinds.at(key).forward;
    names_.push_back(infos.back().name);
    keys.push_back(std::move(key));
  }
  keep_ = keep_lines(infos);
  // An error of 1 everywhere costs as much as a forward pass and a backward pass, which takes twice
  // that.
  const double error_cost = 3 * forward_ * 1e9 / static_cast<double>(blocks.size());
  for (auto& [key, kind] : kinds) {
    const OptionSettings settings{.info = kind.info,
                                  .sample = kind.call.sample,
                                  .seconds = kind.seconds,
                                  .bytes_per_second = copied};
    std::vector<SegmentOption> exact = exact_options(settings);
    kinds_[key] = round ? rounded_options(settings, exact, error_cost) : std::move(exact);
  }
  for (const std::string& key : keys) options_.push_back(&kinds_.at(key));
}

std::vector<const SegmentOption*> LayerSearch::chosen(const std::vector<int>& choice) const {
  std::vector<const SegmentOption*> all;
  for (size_t i = 0; i < choice.size(); ++i) all.push_back(&(*options_[i])[choice[i]]);
  return all;
}

std::string LayerSearch::base_policy() const {
  return keep_ + slot_lines(names_, chosen(std::vector<int>(names_.size(), 0)));
}

LayerProblem LayerSearch::problem(const StepTrace& base) const {
  return segment_problem(base.memory(), names_, options_);
}

std::optional<LayerSearch::Found> LayerSearch::solve(const c10::intrusive_ptr<StepTrace>& base,
                                                     int64_t budget) const {
  const std::optional<LayerSolution> solution = ::compact::solve(problem(*base), budget);
  if (!solution) return std::nullopt;
  const auto options = chosen(solution->choice);
  int64_t nanoseconds = 0;
  double error = 0;
  for (const SegmentOption* option : options) {
    nanoseconds += option->nanoseconds;
    error += option->error;
  }
  return Found{keep_ + slot_lines(names_, options), solution->peak, nanoseconds,
               error / static_cast<double>(names_.size())};
}

int64_t LayerSearch::least_peak(const c10::intrusive_ptr<StepTrace>& base) const {
  return ::compact::least_peak(problem(*base));
}

}  // namespace compact
