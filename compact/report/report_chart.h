// SPDX-License-Identifier: Apache-2.0
// Charts as inline SVG. Colours are CSS classes of the page: s0 .. s7 one for each run, p0 .. p3
// one for each part of a bar.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compact/report/run_report.h"

namespace compact {

// Text for HTML, in element content and in attributes.
std::string html_escape(const std::string& text);

// About `count` round numbers that cover [low, high].
std::vector<double> axis_ticks(double low, double high, int count);

// Moves labels, each a height and a number, apart, keeping their order: at least `gap` between
// neighbours, none below `bottom`.
void spread_labels(std::vector<std::pair<double, size_t>>& labels, double gap, double bottom);

// Training loss as lines, evaluation loss as dots, labels at the right end. Empty where no run has
// a curve.
std::string loss_chart(std::span<const RunReport> runs);
// Evaluation accuracy in percent over epochs.
std::string accuracy_chart(std::span<const RunReport> runs);

// The highest memory of a step as one bar for each run: weights, optimizer state, saved tensors,
// and the rest (gradients and temporaries). Empty where no run has memory figures.
std::string memory_chart(std::span<const RunReport> runs);
// The parts in their order.
std::span<const char* const> memory_parts();

}  // namespace compact
