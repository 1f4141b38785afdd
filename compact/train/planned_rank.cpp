// SPDX-License-Identifier: Apache-2.0
#include "compact/train/planned_rank.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "compact/base/check.h"
#include "compact/tasks/setup.h"

namespace compact {

int64_t heaviest_rank(const TrainConfig& c, const Task& task, const Policy& policy,
                      c10::DeviceType device) {
  if (c.ranks == 1 || c.zero == 0) return 0;
  constexpr size_t kMostPlanned = 8;  // of those that are dealt the most
  prepare_meta(device);
  std::vector<int64_t> loads;
  {
    const std::unique_ptr<Network> model = task.network(c, policy, at::kMeta);
    Optimizer optimizer(model->trained(), optimizer_options(c, policy));
    shard_weights(*model, optimizer);
    loads = optimizer.dealt_loads();
  }
  std::vector<int64_t> ranks(loads.size());
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  std::ranges::stable_sort(ranks, std::ranges::greater{},
                           [&](int64_t rank) { return loads[static_cast<size_t>(rank)]; });
  int64_t heaviest = 0, most = -1;
  for (const int64_t rank : std::span(ranks).first(std::min(ranks.size(), kMostPlanned))) {
    TrainConfig own = c;
    own.planned_rank = rank;
    const int64_t bytes = plan_step(step_request(own, task, policy, device)).reserved;
    if (bytes > most) heaviest = rank, most = bytes;
  }
  return heaviest;
}

std::optional<Chosen> find_for_ranks(TrainConfig& c, const Task& task, c10::DeviceType device,
                                     const StatedSpeed& stated, int64_t budget) {
  constexpr int kMostRounds = 4;
  c.planned_rank = 0;
  int64_t asked = budget;
  for (int round = 0; round < kMostRounds; ++round) {
    std::optional<Chosen> chosen = planner_for(c, task, device, stated).find(asked);
    if (!chosen) return std::nullopt;
    const int64_t heaviest = heaviest_rank(c, task, chosen->policy, device);
    if (heaviest != c.planned_rank) {
      c.planned_rank = heaviest;
      chosen->plan = plan_step(step_request(c, task, chosen->policy, device));
    }
    const int64_t more = chosen->plan.reserved - budget;
    if (more <= 0) return chosen;
    asked -= more;  // what is chosen may make yet another rank the heaviest
  }
  return std::nullopt;
}

Chosen choose_for_ranks(TrainConfig& c, const Task& task, c10::DeviceType device,
                        const StatedSpeed& stated) {
  const int64_t budget = budget_of(c);
  if (c.ranks > 1) {
    if (std::optional<Chosen> chosen = find_for_ranks(c, task, device, stated, budget)) {
      return std::move(*chosen);
    }
  }
  BudgetPlanner planner = planner_for(c, task, device, stated);
  Chosen chosen = planner.choose(budget);  // else it says what would fit
  if (c.ranks == 1) return chosen;
  throw BudgetError(cat("--budget ", c.budget, ": what fits one of the ", c.ranks,
                        " ranks does not fit another: a larger budget, or a smaller batch"),
                    chosen.plan.reserved);
}

}  // namespace compact
