// SPDX-License-Identifier: Apache-2.0
// The cheapest policy whose peak stays under a byte budget.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "compact/plan/request.h"
#include "compact/plan/speed.h"

namespace compact {

// What may be given up, in this order: nothing; the precision of moments, and then of what blocks
// keep (8, 4 or 2 bits, layer by layer); gradients and moments of the block matrices in a random
// projection.
struct Allowed {
  bool quantize = false, project = false;
  // "lossless", or "quantize", "project" joined by commas. Throws InputError on another.
  static Allowed parse(const std::string& text);
};

struct Chosen {
  Policy policy;
  StepPlan plan;
  double seconds = 0;         // predicted, of a step
  double added_seconds = 0;   // of it for rebuilding, and for what codecs read and write
  double added_products = 0;  // operations of matrix products, beside a step that rebuilds nothing
  double error = 0;           // mean E|g' - g|^2 / |g|^2 of the block matrices' gradients, layers
                              // alike; of rounded tensors the part of their square
  bool lossless = true;
  int64_t states = 0;  // of the search, which is exact
};

// No policy fits. `peak`: what a step would take, where policies are searched at least.
struct BudgetError : std::runtime_error {
  BudgetError(const std::string& message, int64_t peak) : std::runtime_error(message), peak(peak) {}
  int64_t peak;
};

class BudgetSearch;

// Finds policies for one model and step under any budget. Knows what it has planned before.
class BudgetPlanner {
 public:
  // Of a language model; request.policy is not read.
  BudgetPlanner(const PlanRequest& request, Allowed allowed, const Speed& speed);
  // Of any other. `ways` says what would fit a budget that the search cannot meet.
  BudgetPlanner(std::unique_ptr<BudgetSearch> search, std::function<std::string(int64_t)> ways);
  BudgetPlanner(BudgetPlanner&&) noexcept;
  ~BudgetPlanner();

  // The least predicted time among lossless policies under the budget (bytes of tensors on the CPU,
  // of reserved memory on CUDA); only where none fits, the allowed lossy ones, with the least error
  // first. nullopt where nothing fits. Throws InputError on a budget that is not positive.
  std::optional<Chosen> find(int64_t budget);
  // The same; throws BudgetError, which names what would fit.
  Chosen choose(int64_t budget);
  // The least peak of the allowed policies.
  int64_t least_peak();

 private:
  std::unique_ptr<BudgetSearch> search_;
  std::function<std::string(int64_t)> ways_;
};

// What would bring the least peak under the budget, the mildest first: a smaller batch, a shorter
// block, bf16, lossy treatments. Empty where nothing does.
std::string ways_to_fit(const PlanRequest& request, int64_t budget, Allowed allowed,
                        const Speed& speed);

}  // namespace compact
