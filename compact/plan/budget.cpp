// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/budget.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/plan/transformer_search.h"

namespace compact {

Allowed Allowed::parse(const std::string& text) {
  Allowed allowed;
  for (const std::string& part : split(text, ',')) {
    const std::vector<std::string> known = {"lossless", "quantize", "project"};
    COMPACT_CHECK(std::ranges::find(known, part) != known.end(), "--allow: no such value `", part,
                  "`", suggestion(part, known));
    allowed.quantize |= part == "quantize";
    allowed.project |= part == "project";
  }
  return allowed;
}

BudgetPlanner::BudgetPlanner(const PlanRequest& request, Allowed allowed, const Speed& speed)
    : BudgetPlanner(std::make_unique<TransformerSearch>(request, allowed, speed),
                    [=](int64_t budget) { return ways_to_fit(request, budget, allowed, speed); }) {}

BudgetPlanner::BudgetPlanner(std::unique_ptr<BudgetSearch> search,
                             std::function<std::string(int64_t)> ways)
    : search_(std::move(search)), ways_(std::move(ways)) {}
BudgetPlanner::BudgetPlanner(BudgetPlanner&&) noexcept = default;
BudgetPlanner::~BudgetPlanner() = default;

int64_t BudgetPlanner::least_peak() { return search_->least_peak(); }

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

std::string ways_to_fit(const PlanRequest& request, int64_t budget, Allowed allowed,
                        const Speed& speed) {
  std::string text;
  int found = 0;
  const auto offer = [&](const std::string& what, const PlanRequest& r, Allowed a) {
    const int64_t least = TransformerSearch(r, a, speed).least_peak();
    if (least > budget) return false;
    text += cat(found++ ? "; " : "", what, " (from ", format_bytes(least), ")");
    return true;
  };
  for (int64_t batch = request.step.batch / 2; batch >= 1; batch /= 2) {
    PlanRequest r = request;
    r.step.batch = batch;
    if (offer(cat("--per_device_train_batch_size ", batch), r, allowed)) break;
  }
  for (int64_t length = request.step.length / 2; length >= 32; length /= 2) {
    PlanRequest r = request;
    r.step.length = length;
    if (offer(cat("--block_size ", length), r, allowed)) break;
  }
  if (request.dtype == at::kFloat) {
    PlanRequest r = request;
    r.dtype = at::kBFloat16;
    offer("--dtype bfloat16", r, allowed);
  }
  if (!allowed.project) {
    Allowed more = allowed;
    more.project = true;
    if (!offer("--allow project", request, more) && !allowed.quantize) {
      more.quantize = true;
      offer("--allow quantize,project", request, more);
    }
  }
  return text;
}

}  // namespace compact
