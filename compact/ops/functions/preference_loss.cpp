// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/preference_loss.h"

#include <ATen/ATen.h>

#include <span>
#include <utility>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/function_ref.h"
#include "compact/base/named.h"
#include "compact/kernels/kernels.h"
#include "compact/ops/functions/range_attention.h"

namespace compact {
namespace {

struct PreferenceName {
  std::string name;
  PreferenceKind kind;
};

// Calls `one` with each range's part of x [batch * length].
void for_parts(const at::Tensor& ranges, int64_t length, const at::Tensor& x,
               FunctionRef<void(int64_t number, const at::Tensor& part)> one) {
  const auto* const r = ranges.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < ranges.size(0); ++i) {
    const auto* const place = r + 3 * i;
    one(i, x.narrow(0, place[0] * length + place[1], place[2] - place[1]));
  }
}

// f64 [pairs, 2]: sums of x [batch * length] over each range, one by one: in a fixed order on any
// device, and what is not finite in one is in no other.
at::Tensor sums_of(const at::Tensor& x, const at::Tensor& ranges, int64_t length) {
  std::vector<at::Tensor> sums;
  for_parts(ranges, length, x,
            [&](int64_t, const at::Tensor& part) { sums.push_back(part.sum(at::kDouble)); });
  return at::stack(sums).view({-1, 2});
}

// The pairs' losses f64 [pairs], and their derivatives by m.
std::pair<at::Tensor, at::Tensor> losses_of(const at::Tensor& m, const PreferenceLoss& how) {
  switch (how.kind) {
    case PreferenceKind::kHinge: {
      const at::Tensor below = 1 - how.beta * m;
      return {below.relu(), below.gt(0).to(at::kDouble) * -how.beta};
    }
    case PreferenceKind::kIpo: {
      const at::Tensor off = m - 1 / (2 * how.beta);
      return {off.square(), 2 * off};
    }
    default:
      break;
  }
  const at::Tensor z = how.beta * m;
  const double right = 1 - how.smoothing;
  const auto minus_log = [](const at::Tensor& x) { return at::softplus(-x, 1, 40); };
  return {right * minus_log(z) + how.smoothing * minus_log(-z),
          how.beta * (how.smoothing * z.sigmoid() - right * (-z).sigmoid())};
}

}  // namespace

PreferenceKind preference_kind(const std::string& name) {
  static const PreferenceName kinds[] = {{"sigmoid", PreferenceKind::kSigmoid},
                                         {"hinge", PreferenceKind::kHinge},
                                         {"ipo", PreferenceKind::kIpo}};
  return named(std::span<const PreferenceName>(kinds), name, "--loss_type: no such loss").kind;
}

at::Tensor preference_loss(const at::Tensor& hidden, const at::Tensor& head,
                           const at::Tensor& targets, const at::Tensor& ranges,
                           const at::Tensor& reference, const PreferenceLoss& how, double scale,
                           const LossTreatment& treatment, LossReport* report, double softcap,
                           PreferenceScore* score) {
  COMPACT_CHECK(how.beta > 0, "[preference_loss] beta must be above 0, is ", how.beta);
  COMPACT_CHECK(how.smoothing >= 0 && how.smoothing < 0.5,
                "[preference_loss] smoothing must be in [0, 0.5), is ", how.smoothing);
  COMPACT_CHECK(targets.dim() == 2, "[preference_loss] targets must be [batch, length], are ",
                targets.sizes());
  COMPACT_CHECK(ranges.defined(), "[preference_loss] needs the ranges of the pairs' answers");
  check_ranges(ranges, targets.size(0), targets.size(1));
  const int64_t pairs = ranges.size(0) / 2;
  COMPACT_CHECK(ranges.size(0) == 2 * pairs, "[preference_loss] needs two ranges a pair, has ",
                ranges.size(0));
  COMPACT_CHECK(reference.dim() == 2 && reference.size(0) == pairs && reference.size(1) == 2 &&
                    reference.scalar_type() == at::kDouble && reference.device() == hidden.device(),
                "[preference_loss] reference must be f64 [", pairs, ", 2] on ", hidden.device(),
                ", is ", reference.toString(), " ", reference.sizes(), " on ", reference.device());
  const int64_t length = targets.size(1);
  const auto combine = [&](const at::Tensor& losses) {
    const at::Tensor log_probs = -sums_of(losses, ranges, length), ratios = log_probs - reference;
    at::Tensor counts;  // of targets
    if (how.kind == PreferenceKind::kIpo) {
      counts = sums_of(targets.reshape(-1).ne(kernels::kIgnoreIndex), ranges, length);
      counts.clamp_min_(1);
    }
    const at::Tensor each = counts.defined() ? ratios / counts : ratios;
    const auto [loss, slope] = losses_of(each.select(1, 0) - each.select(1, 1), how);
    if (score) *score = {log_probs, how.beta * ratios};
    at::Tensor of_range = at::stack({-slope, slope}, 1);  // by a token's loss, not its log
    if (counts.defined()) of_range = of_range / counts;
    of_range = of_range.to(at::kFloat).flatten();
    const at::Tensor weights = at::zeros_like(losses);
    for_parts(ranges, length, weights, [&](int64_t number, const at::Tensor& part) {
      part.copy_(of_range.select(0, number).expand_as(part));
    });
    return CombinedLoss{loss.sum(), weights};
  };
  return linear_combined_loss(hidden, head, targets, scale, treatment, combine, report, softcap);
}

}  // namespace compact
