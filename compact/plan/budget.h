// SPDX-License-Identifier: Apache-2.0
// The cheapest policy whose peak stays under a byte budget.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "compact/plan/search.h"

namespace compact {

// No policy fits. `peak`: what a step would take; after a search the least that any policy would
// take.
struct BudgetError : std::runtime_error {
  BudgetError(const std::string& message, int64_t peak) : std::runtime_error(message), peak(peak) {}
  int64_t peak;
};

// Finds policies for one network and step under any budget. Knows what it has planned before.
class BudgetPlanner {
 public:
  // `ways` names settings that would fit a budget that the search cannot meet.
  BudgetPlanner(std::unique_ptr<BudgetSearch> search, std::function<std::string(int64_t)> ways)
      : search_(std::move(search)), ways_(std::move(ways)) {}

  // The least predicted time among lossless policies under the budget (bytes of tensors on the CPU,
  // of reserved memory on CUDA); only where none fits, the allowed lossy ones, with the least error
  // first. nullopt where nothing fits. Throws InputError on a budget that is not positive.
  std::optional<Chosen> find(int64_t budget);
  // The same; throws BudgetError, which names settings that would fit.
  Chosen choose(int64_t budget);
  // The least peak of the allowed policies.
  int64_t least_peak() { return search_->least_peak(); }

 private:
  std::unique_ptr<BudgetSearch> search_;
  std::function<std::string(int64_t)> ways_;
};

}  // namespace compact
