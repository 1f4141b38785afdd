// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "compact/base/check.h"

namespace compact {

void check_sampling(const SamplingOptions& o) {
  COMPACT_CHECK(std::isfinite(o.temperature) && o.temperature >= 0,
                "--temperature must be at least 0, is ", o.temperature);
  COMPACT_CHECK(o.top_k >= 0, "--top_k must be at least 0, is ", o.top_k);
  COMPACT_CHECK(o.top_p > 0 && o.top_p <= 1, "--top_p must be above 0 and at most 1, is ", o.top_p);
}

int64_t sample(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  COMPACT_CHECK(!logits.empty(), "[sample] there are no logits");
  for (size_t i = 0; i < logits.size(); ++i) {
    COMPACT_CHECK(!std::isnan(logits[i]), "[sample] the logit of token ", i, " is NaN");
  }
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0) return largest - logits.begin();

  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  size_t kept = order.size();
  if (options.top_k > 0) kept = std::min(kept, static_cast<size_t>(options.top_k));
  if (kept < order.size() || options.top_p < 1) {
    const auto before = [&](int64_t a, int64_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    };
    std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(kept), order.end(),
                      before);
  }
  std::vector<double> weight(kept);
  double total = 0;
  for (size_t i = 0; i < kept; ++i) {
    const double above = static_cast<double>(logits[order[i]]) - *largest;
    weight[i] = above == 0 ? 1.0 : std::exp(above / options.temperature);
    total += weight[i];
  }
  if (options.top_p < 1) {
    const double enough = options.top_p * total;
    double sum = 0;
    for (size_t i = 0; i < kept; ++i) {
      sum += weight[i];
      if (sum >= enough) kept = i + 1;
    }
    total = sum;
  }
  double rest = uniform * total;
  for (size_t i = 0; i + 1 < kept; ++i) {
    rest -= weight[i];
    if (rest < 0) return order[i];
  }
  return order[kept - 1];
}

}  // namespace compact
