// SPDX-License-Identifier: Apache-2.0
// Scores batches of held-out data, by one rank or several, and puts the results together.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "compact/base/check.h"
#include "compact/base/scores.h"
#include "compact/data/samples/split.h"
#include "compact/ops/memory/memory.h"
#include "compact/tasks/evaluate.h"

namespace compact {

namespace {

// Results of one rank's batches.
struct Scored {
  std::vector<double> sums;       // kSums numbers of each batch; zeros for batches of other ranks
  std::vector<double> predicted;  // of each of its batches: number, count, predictions, labels
};
enum Sums {
  kLoss,
  kTargets,
  kCorrect,
  kInFive,
  kHasClasses,
  kHasFive,
  kChosen,
  kRejected,
  kHasRewards,
  kSums
};

Scored score_batches(const Network& network, const Dataset& data,
                     const std::vector<int64_t>& numbers, int64_t batch, const Task& task,
                     Console* console, int rank, int ranks) {
  const auto count = static_cast<int64_t>(numbers.size());
  const int64_t batches = (count + batch - 1) / batch;
  Scored scored{.sums = std::vector<double>(static_cast<size_t>(batches) * kSums, 0.0),
                .predicted = {}};
  const auto append = [&](const at::Tensor& t) {
    const at::Tensor values = t.to(at::kDouble).contiguous();
    scored.predicted.insert(scored.predicted.end(), values.const_data_ptr<double>(),
                            values.const_data_ptr<double>() + values.numel());
  };
  int64_t percent = 0;  // that is shown; a single batch shows none
  for (int64_t number = rank; number < batches; number += ranks) {
    const int64_t i = number * batch;
    if (console && i * 100 / count != percent) {
      percent = i * 100 / count;
      console->bar(i, count, "samples evaluated");
    }
    const Batch samples = data.numbered(
        std::span(numbers).subspan(static_cast<size_t>(i), std::min(batch, count - i)));
    check_targets(samples, task);
    const StepInputs b = inputs_of(samples, network.device());
    const Score s = network.score(b.inputs, b.target, b.ranges);
    double* sums = scored.sums.data() + number * kSums;
    sums[kLoss] = s.loss;
    sums[kTargets] = static_cast<double>(s.targets);
    sums[kCorrect] = static_cast<double>(s.correct);
    sums[kInFive] = static_cast<double>(s.in_five);
    sums[kHasClasses] = s.correct >= 0;
    sums[kHasFive] = s.in_five >= 0;
    if (s.rewards.defined()) {
      sums[kChosen] = s.rewards.select(1, 0).sum().item<double>();
      sums[kRejected] = s.rewards.select(1, 1).sum().item<double>();
      sums[kHasRewards] = 1;
    }
    if (task.metrics.empty()) continue;
    COMPACT_CHECK(s.predicted.numel() == samples.target.numel(), "[evaluate] ", s.predicted.numel(),
                  " predictions of ", samples.target.numel(), " targets");
    scored.predicted.push_back(static_cast<double>(number));
    scored.predicted.push_back(static_cast<double>(s.predicted.numel()));
    append(s.predicted);
    append(samples.target);
  }
  return scored;
}

// Predictions and labels of all ranks' batches, in the order of the batches.
std::pair<std::vector<double>, std::vector<double>> in_order(
    const std::vector<std::string>& of_ranks) {
  std::map<double, std::span<const double>> all;
  std::vector<std::vector<double>> lists;
  for (const std::string& bytes : of_ranks) {
    std::vector<double>& list = lists.emplace_back(bytes.size() / sizeof(double));
    if (!list.empty()) std::memcpy(list.data(), bytes.data(), bytes.size());
  }
  for (const std::vector<double>& list : lists) {
    for (size_t at = 0; at < list.size();) {
      const auto count = static_cast<size_t>(list[at + 1]);
      all[list[at]] = std::span(list).subspan(at + 2, 2 * count);
      at += 2 + 2 * count;
    }
  }
  std::pair<std::vector<double>, std::vector<double>> result;
  for (const auto& [number, values] : all) {
    const size_t half = values.size() / 2;
    result.first.insert(result.first.end(), values.begin(), values.begin() + half);
    result.second.insert(result.second.end(), values.begin() + half, values.end());
  }
  return result;
}

EvalResult result_of(const std::vector<double>& sums, const std::vector<std::string>& predictions,
                     const Task& task) {
  double loss = 0, correct = 0, in_five = 0, chosen = 0, rejected = 0;
  int64_t targets = 0;
  bool classes = false, five = false, rewards = false;
  for (size_t at = 0; at < sums.size(); at += kSums) {
    loss += sums[at + kLoss];
    targets += static_cast<int64_t>(sums[at + kTargets]);
    correct += sums[at + kCorrect];
    in_five += sums[at + kInFive];
    classes |= sums[at + kHasClasses] > 0;
    five |= sums[at + kHasFive] > 0;
    chosen += sums[at + kChosen];
    rejected += sums[at + kRejected];
    rewards |= sums[at + kHasRewards] > 0;
  }
  const auto of_targets = [&](double x) {
    return x / static_cast<double>(std::max<int64_t>(1, targets));
  };
  EvalResult result{.loss = of_targets(loss), .targets = targets};
  if (classes) {
    result.accuracy = of_targets(correct);
    if (five) result.in_five = of_targets(in_five);
  }
  if (rewards) result.rewards = {of_targets(chosen), of_targets(rejected)};
  result.values = !task.metrics.empty() && !classes;
  if (task.metrics.empty()) return result;
  const auto [predicted, labels] = in_order(predictions);
  for (const std::string& name : task.metrics) {
    if (name == "accuracy" && classes) continue;
    if (name == "f1") result.f1_class = task.positive_name;
    result.scores.emplace_back(name, named_score(name, predicted, labels, task.positive_class));
  }
  return result;
}

std::string bytes_of(const std::vector<double>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
}

}  // namespace

EvalResult evaluate_samples(const Network& network, const Dataset& data, int64_t most,
                            int64_t batch, const Task& task, Console* console) {
  const Scored s =
      score_batches(network, data, some_samples(data.size(), most), batch, task, console, 0, 1);
  return result_of(s.sums, {bytes_of(s.predicted)}, task);
}

EvalResult evaluate_within_memory(const Network& network, const Dataset& data, int64_t most,
                                  int64_t& batch, const Task& task, Console& console,
                                  Group& group) {
  for (;;) {
    std::optional<std::string> what;
    Scored scored;
    try {
      scored = score_batches(network, data, some_samples(data.size(), most), batch, task, &console,
                             group.rank(), group.size());
    } catch (const std::exception& e) {
      what = out_of_memory(e);
      if (!what || batch == 1) throw;
    }
    // Each rank reports whether it ran out of memory; some may take long to get here.
    const std::vector<std::string> said = group.gather_patiently(what.value_or(""));
    const auto out = std::ranges::find_if(said, [](const auto& text) { return !text.empty(); });
    if (out == said.end()) {
      const at::Tensor sums = at::from_blob(
          scored.sums.data(), {static_cast<int64_t>(scored.sums.size())}, at::kDouble);
      group.all_reduce(sums);
      return result_of(scored.sums, group.gather(bytes_of(scored.predicted)), task);
    }
    batch /= 2;
    console.line(cat("warning: ", *out, "; evaluation goes on with batches of ", batch));
  }
}

}  // namespace compact
