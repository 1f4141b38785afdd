// SPDX-License-Identifier: Apache-2.0
#include "compact/base/scores.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "compact/base/named.h"
#include "compact/base/text.h"

namespace compact {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Whether there is anything to score.
bool comparable(Values predicted, Values labels) {
  COMPACT_CHECK(predicted.size() == labels.size(),
                "[scores] must be as many predictions as labels, ", "are ", predicted.size(),
                " and ", labels.size());
  const auto is_nan = [](double x) { return std::isnan(x); };
  return !labels.empty() && std::none_of(predicted.begin(), predicted.end(), is_nan) &&
         std::none_of(labels.begin(), labels.end(), is_nan);
}

bool constant(Values x) {
  return std::all_of(x.begin(), x.end(), [&](double v) { return v == x[0]; });
}

// x less its mean, scaled to length 1.
std::vector<double> normalized(Values x) {
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
  std::vector<double> out;
  double most = 0;
  for (const double v : x) {
    out.push_back(v - mean);
    most = std::max(most, std::abs(out.back()));
  }
  double squares = 0;  // of quotients by the largest, so that none overflows
  for (const double v : out) squares += (v / most) * (v / most);
  for (double& v : out) v = v / most / std::sqrt(squares);
  return out;
}

// Ranks from 1; equal values get the mean of theirs.
std::vector<double> ranks(Values x) {
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] < x[b]; });
  std::vector<double> out(x.size());
  for (size_t i = 0; i < order.size();) {
    size_t end = i;
    while (end < order.size() && x[order[end]] == x[order[i]]) ++end;
    const double rank = static_cast<double>(i + 1 + end) / 2;
    for (; i < end; ++i) out[order[i]] = rank;
  }
  return out;
}

}  // namespace

double accuracy(Values predicted, Values labels) {
  if (!comparable(predicted, labels)) return kNaN;
  size_t equal = 0;
  for (size_t i = 0; i < labels.size(); ++i) equal += predicted[i] == labels[i];
  return static_cast<double>(equal) / static_cast<double>(labels.size());
}

double f1(Values predicted, Values labels, double positive) {
  if (!comparable(predicted, labels)) return kNaN;
  size_t both = 0, either = 0;  // `either` adds the positives of both sides
  for (size_t i = 0; i < labels.size(); ++i) {
    both += predicted[i] == positive && labels[i] == positive;
    either += (predicted[i] == positive) + (labels[i] == positive);
  }
  return either == 0 ? 0 : 2 * static_cast<double>(both) / static_cast<double>(either);
}

double matthews(Values predicted, Values labels) {
  if (!comparable(predicted, labels)) return kNaN;
  struct Count {
    double predicted = 0, labelled = 0;
  };
  std::map<double, Count> counts;
  double equal = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    ++counts[predicted[i]].predicted;
    ++counts[labels[i]].labelled;
    equal += predicted[i] == labels[i];
  }
  const auto all = static_cast<double>(labels.size());
  double both = equal * all, in_predicted = all * all, in_labels = all * all;
  for (const auto& [value, count] : counts) {
    both -= count.predicted * count.labelled;
    in_predicted -= count.predicted * count.predicted;
    in_labels -= count.labelled * count.labelled;
  }
  if (in_predicted == 0 || in_labels == 0) return 0;
  return both / (std::sqrt(in_predicted) * std::sqrt(in_labels));
}

double pearson(Values predicted, Values labels) {
  if (!comparable(predicted, labels) || constant(predicted) || constant(labels)) return kNaN;
  const std::vector<double> a = normalized(predicted), b = normalized(labels);
  const double product = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  return std::clamp(product, -1.0, 1.0);
}

double spearman(Values predicted, Values labels) {
  if (!comparable(predicted, labels)) return kNaN;
  return pearson(ranks(predicted), ranks(labels));
}

double named_score(std::string_view name, Values predicted, Values labels, double positive) {
  struct Score {
    const char* name;
    std::function<double(Values, Values)> of;
  };
  const Score all[] = {{"accuracy", accuracy},
                       {"f1", [=](Values a, Values b) { return f1(a, b, positive); }},
                       {"matthews_correlation", matthews},
                       {"pearson", pearson},
                       {"spearmanr", spearman}};
  return named(std::span<const Score>(all), name, "no score is named").of(predicted, labels);
}

}  // namespace compact
