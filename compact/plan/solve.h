// SPDX-License-Identifier: Apache-2.0
// Which option every layer takes so that the cost is least and memory never passes a budget. A
// training step keeps tensors layer by layer and frees them in the opposite order, so at every
// moment what earlier layers keep is a prefix sum; one pass over the layers that carries every
// Pareto-optimal (prefix, cost) is exact. A state is left out where its cost, plus a lower bound of
// the cost of later layers, is above the cost of a solution already known. The bound lets later
// layers mix their options and limits only the sum of what they keep.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace compact {

// One way to treat a layer. Bytes; cost in any integer unit.
struct LayerOption {
  int64_t saved = 0;     // kept from its forward to its backward pass
  int64_t forward = 0;   // the most that its forward pass takes above what earlier layers keep
  int64_t backward = 0;  // the same of its backward pass, its own saved tensors included
  int64_t cost = 0;
};

struct LayerProblem {
  std::vector<std::vector<LayerOption>> options;  // of each layer, first to last
  std::vector<int64_t> forward_base;              // of each layer: beside saved tensors
  std::vector<int64_t> backward_base;             // the same in backward: gradients of later layers
  // The same for each layer when its backward pass is done and released weights are updated.
  std::vector<int64_t> after_base;
  int64_t top_base = 0;  // when all layers keep: the loss
  int64_t rest = 0;      // the most of moments that no choice changes
};

struct LayerSolution {
  std::vector<int> choice;  // an option of each layer
  int64_t cost = 0, peak = 0;
  int64_t states = 0;  // Pareto-optimal states that were carried
};

// The peak of a choice.
int64_t peak_of(const LayerProblem& problem, const std::vector<int>& choice);

// The choice of least cost under the budget, of equal costs the one of least peak; nullopt where no
// choice of at most cost `most` fits. Exact. The peak never rises when the budget falls; budgets of
// the same cost and peak have the same choice.
inline constexpr int64_t kAnyCost = std::numeric_limits<int64_t>::max() / 4;
std::optional<LayerSolution> solve(const LayerProblem& problem, int64_t budget,
                                   int64_t most = kAnyCost);

// Whether a choice of at most cost `most` fits.
bool solvable(const LayerProblem& problem, int64_t budget, int64_t most);

// Whether any choice fits.
bool fits(const LayerProblem& problem, int64_t budget);

// The least peak that any choice reaches.
int64_t least_peak(const LayerProblem& problem);

// The indices of the options that no other one beats or equals in every number.
std::vector<int> pareto(const std::vector<LayerOption>& options);

}  // namespace compact
