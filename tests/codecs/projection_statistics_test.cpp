// SPDX-License-Identifier: Apache-2.0
// Statistics of projections over many keys. Each bound is five standard errors wide (for a normal
// statistic a correct projection fails once in 1.7 million); keys are fixed, so that a test passes
// always or never.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "compact/codecs/projection.h"

namespace compact {
namespace {

constexpr double kSigmas = 5;

// Rows that differ in shape: dense, one spike, a dense row with an outlier, a few equal entries.
at::Tensor test_rows(int64_t n) {
  at::Tensor x = at::zeros({4, n});
  const at::Tensor i = at::arange(n);
  x[0].copy_(at::sin((i * i).remainder(1009) * 1.7));
  x[1][n / 3] = 1;
  x[2].copy_(x[0] * 0.1);
  x[2][n - 1] = 3;
  x[3].narrow(0, n / 2, std::min<int64_t>(n - n / 2, 8)).fill_(1);
  return x / x.norm(2, {1}, true);
}

class Statistics : public testing::TestWithParam<std::string> {};

void check_statistics(const ProjectionInfo& info, int64_t n, int64_t r) {
  SCOPED_TRACE(testing::Message() << "n = " << n << ", r = " << r);
  constexpr int kDraws = 160;
  const at::Tensor x = test_rows(n);
  const int64_t rows = x.size(0);
  at::Tensor mean = at::zeros({rows, n}, at::kDouble);
  std::vector<at::Tensor> errors, norms;
  for (int d = 0; d < kDraws; ++d) {
    const ProjectionPtr p = info.make(n, r, 1000 + static_cast<uint64_t>(d), at::kFloat);
    const at::Tensor z = p->apply(x), back = p->transpose(z);
    mean += back;
    errors.push_back((back - x).square().sum(1).to(at::kDouble));
    norms.push_back(z.square().sum(1).to(at::kDouble));
  }
  mean /= kDraws;
  const auto check = [&](const std::vector<at::Tensor>& all, double expected, const char* what) {
    const at::Tensor t = at::stack(all);  // [draws, rows]
    for (int64_t i = 0; i < rows; ++i) {
      const at::Tensor column = t.select(1, i);
      const double error = column.std().item<double>() / std::sqrt(kDraws);
      EXPECT_NEAR(column.mean().item<double>(), expected, kSigmas * error + 1e-5)
          << what << ", row " << i;
      EXPECT_LT(kSigmas * error, 0.25 * expected) << what << ", row " << i << ": bound is idle";
    }
  };
  const double expected = info.relative_error(n, r);
  check(norms, 1, "|z|^2");
  check(errors, expected, "|x P P^T - x|^2");
  // The mean over draws of x P P^T has squared distance expected/kDraws to x if every coordinate is
  // unbiased; about n independent coordinates give it a relative spread of sqrt(2/n).
  const at::Tensor distance = (mean - x).square().sum(1) * kDraws / expected;
  const double spread = std::sqrt(2.0 / static_cast<double>(n)) +
                        2 / std::sqrt(static_cast<double>(n) * static_cast<double>(r));
  for (int64_t i = 0; i < rows; ++i) {
    EXPECT_NEAR(distance[i].item<double>(), 1, kSigmas * spread) << "mean of x P P^T, row " << i;
  }
}

const ProjectionInfo* info_named(const std::string& name) {
  return *std::ranges::find(projections(), name, [](const auto* info) { return info->name; });
}

TEST_P(Statistics, UnbiasedWithTheStatedVariance) {
  const ProjectionInfo& info = *info_named(GetParam());
  for (const int64_t n : {64, 344, 1376, 2736, 5461}) {
    // Dense types at a smaller rank, to draw less.
    const bool dense = info.name != "srht";
    check_statistics(info, n, dense ? std::min<int64_t>(n / 4, 48) : n / 4);
  }
}

std::vector<std::string> projection_names() {
  std::vector<std::string> all;
  for (const ProjectionInfo* info : projections()) all.push_back(info->name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Statistics, testing::ValuesIn(projection_names()),
                         [](const auto& info) { return info.param; });

// |z|^2 of unit rows at r = n/4 has the same small spread for rows of every shape: overlapping
// transforms mix widths that are no power of two as well as others.
TEST(SrhtStatistics, SpreadIsThatOfOrthogonalBases) {
  const std::pair<int64_t, double> known[] = {{344, .12}, {1376, .07}, {2736, .05}, {5461, .03}};
  for (const auto& [n, spread] : known) {
    const at::Tensor x = test_rows(n);
    std::vector<at::Tensor> norms;
    for (uint64_t key = 0; key < 300; ++key) {
      norms.push_back(make_projection("srht", n, n / 4, key, at::kFloat)->apply(x).square().sum(1));
    }
    const at::Tensor measured = at::stack(norms).std(0);
    for (int64_t i = 0; i < x.size(0); ++i) {
      // Known to two digits: half a unit, and five standard errors 1/sqrt(600) of a spread.
      EXPECT_LE(measured[i].item<double>(), (spread + .005) * (1 + kSigmas / std::sqrt(600.)))
          << n << ", row " << i;
    }
  }
}

TEST(SparseStatistics, TwoThirdsAreZero) {
  const at::Tensor p = make_projection("sparse", 600, 100, 9, at::kFloat)->matrix();
  const double share = p.eq(0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(share, 2.0 / 3, kSigmas * std::sqrt(2.0 / 9 / 60000));
  EXPECT_NEAR(p.abs().max().item<double>(), std::sqrt(3.0 / 100), 1e-6);
}

}  // namespace
}  // namespace compact
