// SPDX-License-Identifier: Apache-2.0
#include "compact/train/planned_rank.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

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
    const Optimizer optimizer(model->parameters(), optimizer_options(c, policy));
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

Chosen choose_for_ranks(TrainConfig& c, const Task& task, c10::DeviceType device,
                        const StatedSpeed& stated) {
  constexpr int kMostRounds = 3;  // what is chosen may make another rank the heaviest
  c.planned_rank = 0;
  for (int round = 1;; ++round) {
    Chosen chosen = planner_for(c, task, device, stated).choose(budget_of(c));
    const int64_t heaviest = heaviest_rank(c, task, chosen.policy, device);
    if (heaviest == c.planned_rank) return chosen;
    c.planned_rank = heaviest;
    if (round < kMostRounds) continue;
    chosen.plan = plan_step(step_request(c, task, chosen.policy, device));
    return chosen;
  }
}

}  // namespace compact
