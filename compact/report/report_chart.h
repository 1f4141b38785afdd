// SPDX-License-Identifier: Apache-2.0
// Charts of runs side by side.
#pragma once

#include <span>
#include <string>

#include "compact/report/run_report.h"

namespace compact {

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
