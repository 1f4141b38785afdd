// SPDX-License-Identifier: Apache-2.0
// The cheapest way to hold what the served layers of a model save, under a byte budget: the search
// of compact/plan for layers that somebody else's program runs. For a process that plans.
#pragma once

#include <torch/custom_class.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "compact/plan/options.h"
#include "compact/python/block.h"
#include "compact/python/step_trace.h"

namespace compact {

class LayerSearch final : public torch::CustomClassHolder {
 public:
  using BlockPtr = c10::intrusive_ptr<Block>;
  // `blocks`: watched, in the order of the forward pass, after a pass under a policy that keeps
  // everything; a layer that is called once. `products`, `bytes`: operations of matrix products and
  // bytes a second; 0 and 0: measured on this CPU. `round`: codecs may hold what is kept.
  LayerSearch(const std::vector<BlockPtr>& blocks, double products, double bytes, bool round);

  // The lines of the policy that solve()'s `base` is a step of.
  std::string base_policy() const;

  // Lines of a policy, its predicted peak, nanoseconds that it adds to a step, E|g' - g|^2 / |g|^2.
  using Found = std::tuple<std::string, int64_t, int64_t, double>;
  // The least cost of those whose predicted peak is at most `budget` bytes; nullopt: there is none.
  std::optional<Found> solve(const c10::intrusive_ptr<StepTrace>& base, int64_t budget) const;
  // The least peak that is predicted of any.
  int64_t least_peak(const c10::intrusive_ptr<StepTrace>& base) const;
  // Seconds that the layers' forward passes take, all together.
  double forward_seconds() const { return forward_; }

 private:
  LayerProblem problem(const StepTrace& base) const;
  std::vector<const SegmentOption*> chosen(const std::vector<int>& choice) const;

  std::vector<std::string> names_;
  std::vector<const std::vector<SegmentOption>*> options_;  // of each block
  std::map<std::string, std::vector<SegmentOption>> kinds_;
  std::string keep_;
  double forward_ = 0;
};

}  // namespace compact
