// SPDX-License-Identifier: Apache-2.0
#include "compact/base/scores.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "compact/base/check.h"

namespace compact {
namespace {

using testing::HasSubstr;
using Row = std::vector<double>;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// scikit-learn 1.9.1: accuracy_score, f1_score with zero_division=0 of class 1, matthews_corrcoef.
TEST(Scores, OfClassesAsScikitLearn) {
  struct Case {
    Row predicted, labels;
    double accuracy, f1, matthews;
  };
  const Case cases[] = {
      {{1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0},
       {1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1},
       0.83333333333333337,
       0.8571428571428571,
       0.70710678118654757},
      {{0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0},
       {0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 0, 1, 0, 0, 0},
       0.80000000000000004,
       0.80000000000000004,
       0.6071428571428571},
      {{2, 2, 0, 0, 1, 2, 1, 1, 1, 0, 1, 0, 2, 1},
       {1, 0, 0, 0, 1, 2, 1, 1, 1, 2, 1, 1, 1, 1},
       0.6428571428571429,
       0.80000000000000004,
       0.45509102730910317},
      {{1, 2, 0, 0, 1, 1, 4, 3, 2, 2, 3, 4, 4, 2, 2, 1},
       {1, 2, 0, 0, 1, 4, 4, 3, 2, 2, 0, 1, 4, 2, 1, 1},
       0.75,
       0.66666666666666663,
       0.68528801685731922},
      {{0, 0, 0}, {0, 0, 0}, 1, 0, 0},
      {{1, 1, 1, 1}, {1, 0, 1, 1}, 0.75, 0.8571428571428571, 0},
      {{0, 0, 0}, {1, 0, 1}, 0.33333333333333331, 0, 0},
      {{1, 0}, {0, 1}, 0, 0, -1},
      {{2, 2, 0}, {2, 0, 0}, 0.66666666666666663, 0, 0.5},
      {{1}, {1}, 1, 1, 0},
  };
  for (const Case& c : cases) {
    EXPECT_DOUBLE_EQ(accuracy(c.predicted, c.labels), c.accuracy);
    EXPECT_DOUBLE_EQ(f1(c.predicted, c.labels), c.f1);
    EXPECT_NEAR(matthews(c.predicted, c.labels), c.matthews, 1e-14);
    // All three see labels and predictions alike.
    EXPECT_DOUBLE_EQ(f1(c.labels, c.predicted), c.f1);
    EXPECT_NEAR(matthews(c.labels, c.predicted), c.matthews, 1e-14);
  }
}

// SciPy 1.17.1: pearsonr, spearmanr.
TEST(Scores, OfValuesAsSciPy) {
  struct Case {
    Row predicted, labels;
    double pearson, spearman;
  };
  const Case cases[] = {
      {{-0.12, 1.8, 2.87, 0.96, -0.13, 4.85, -1.75, 3.96, 3.15},
       {0, 3.8, 4, 0.6, 2, 4, 0, 3.2, 4},
       0.84099445755446356,
       0.80018113891322373},
      {{1.01, 0.77, 3.52, 3.46, 4.85, 3.57, 2.61, 3.71, 3.47, 2.44, 2.21, 4.02},
       {1.8, 1.4, 4.8, 2.2, 5, 2.6, 2.6, 4.4, 3.8, 3, 2.2, 4.4},
       0.82743688344152877,
       0.85765691199040628},
      {{1, 2, 2, 2, 5, 5}, {3, 3, 1, 2, 9, 9}, 0.92862125354744807, 0.63564172616372827},
      {{1, 2}, {5, 3}, -1, -1},
      {{1e200, 2e200, -1e200}, {1e-200, 3e-200, 2e-200}, 0.3273268353539886, 0.5},
      {{1000000.1, 1000000.2, 1000000.3}, {1, 3, 2}, 0.49999999970896158, 0.5},
      {{-1, 0, 1, 2}, {1, 0, 1, 4}, 0.7453559924999299, 0.63245553203367599},
  };
  for (const Case& c : cases) {
    EXPECT_NEAR(pearson(c.predicted, c.labels), c.pearson, 1e-9);
    EXPECT_NEAR(spearman(c.predicted, c.labels), c.spearman, 1e-14);
  }
  EXPECT_NEAR(pearson(cases[1].predicted, cases[1].labels), cases[1].pearson, 1e-14);
  EXPECT_LE(pearson(Row{.1, .2, .3}, Row{.1, .2, .3}), 1);
}

TEST(Scores, OfDegenerateInput) {
  for (const auto& [a, b] : std::vector<std::pair<Row, Row>>{{{1, 1, 1}, {1, 2, 3}},
                                                             {{1, 2, 3}, {.1, .1, .1}},
                                                             {{1, kNaN, 3}, {1, 2, 3}},
                                                             {{1}, {2}},
                                                             {{}, {}}}) {
    EXPECT_TRUE(std::isnan(pearson(a, b)));
    EXPECT_TRUE(std::isnan(spearman(a, b)));
  }
  EXPECT_TRUE(std::isnan(pearson(Row{1, kInfinity, 3}, Row{1, 2, 3})));
  EXPECT_DOUBLE_EQ(spearman(Row{1, kInfinity, 3}, Row{1, 2, 3}), .5);
  for (const char* name : {"accuracy", "f1", "matthews_correlation"}) {
    EXPECT_TRUE(std::isnan(named_score(name, {}, {})));
    EXPECT_TRUE(std::isnan(named_score(name, Row{kNaN, 1}, Row{0, 1})));
    EXPECT_TRUE(std::isnan(named_score(name, Row{0, 1}, Row{0, kNaN})));
  }
  for (const char* name : {"accuracy", "f1", "matthews_correlation", "pearson", "spearmanr"}) {
    EXPECT_THROW(named_score(name, Row{1, 2}, Row{1}), InputError);
  }
}

TEST(Scores, ByName) {
  const Row a = {0, 1, 1, 0, 1}, b = {0, 1, 0, 0, 1};
  EXPECT_EQ(named_score("accuracy", a, b), accuracy(a, b));
  EXPECT_EQ(named_score("f1", a, b), f1(a, b));
  EXPECT_EQ(named_score("f1", a, b, 0), f1(Row{1, 0, 0, 1, 0}, Row{1, 0, 1, 1, 0}));
  EXPECT_EQ(named_score("matthews_correlation", a, b), matthews(a, b));
  EXPECT_EQ(named_score("pearson", a, b), pearson(a, b));
  EXPECT_EQ(named_score("spearmanr", a, b), spearman(a, b));
  try {
    named_score("spearman", a, b);
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean `spearmanr`?"));
  }
}

}  // namespace
}  // namespace compact
