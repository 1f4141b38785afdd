// SPDX-License-Identifier: Apache-2.0
// How predictions agree with labels, as scikit-learn and SciPy define it. Throws InputError on
// vectors of unequal lengths; empty vectors and vectors with NaN give NaN.
#pragma once

#include <span>
#include <string_view>

namespace compact {

using Values = std::span<const double>;

// Classes are given by their numbers.
double accuracy(Values predicted, Values labels);
// The score of class `positive`; 0 where neither side has it.
double f1(Values predicted, Values labels, double positive = 1);
// Matthews' correlation for any number of classes (Gorodkin 2004); 0 where predictions or labels
// have only one class.
double matthews(Values predicted, Values labels);

// Correlation of values, from -1 to 1; NaN where either side is constant (as with one value) or
// infinite.
double pearson(Values predicted, Values labels);
// pearson() of the ranks, ties having the mean of theirs.
double spearman(Values predicted, Values labels);

// By the names that Hugging Face's metric `glue` gives them: accuracy, f1, matthews_correlation,
// pearson, spearmanr. Throws InputError, with a suggestion, on another name.
double named_score(std::string_view name, Values predicted, Values labels, double positive = 1);

}  // namespace compact
