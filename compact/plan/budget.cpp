// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/budget.h"

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {

std::optional<Chosen> BudgetPlanner::find(int64_t budget) {
  COMPACT_CHECK(budget > 0, "--budget must be positive, is ", budget, " B");
  return search_->find(budget);
}

Chosen BudgetPlanner::choose(int64_t budget) {
  if (auto found = find(budget)) return std::move(*found);
  const int64_t least = least_peak();
  const std::string other = ways_(budget);
  throw BudgetError(cat("--budget ", format_bytes(budget), " (", format_count(budget),
                        " B) cannot be met: the ", "least peak of what is allowed is ",
                        format_bytes(least), " (", format_count(least), " B)",
                        other.empty() ? "; none of the milder settings reaches it"
                                      : cat("; it would fit with ", other)),
                    least);
}

}  // namespace compact
