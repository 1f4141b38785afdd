// SPDX-License-Identifier: Apache-2.0
// A training step as the search for a policy asks for it: of one of our networks, or of a model of
// another program.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "compact/plan/groups.h"
#include "compact/plan/request.h"

namespace compact {

class StepSource {
 public:
  virtual ~StepSource() = default;
  // The step under a policy; `operations`, where given, becomes what runs in it. Throws InputError
  // if the policy cannot be applied to this step.
  virtual StepPlan plan(const Policy& policy, std::vector<Operation>* operations) = 0;
  // Its segments under a policy.
  virtual SegmentGroups groups(const Policy& policy) = 0;

  StepShape step;
  std::string moments;          // how all are held where no policy says it; empty: no policy can
  bool places_weights = false;  // whether policies say where weights lie
  std::vector<int64_t> chunks;  // tokens of the loss at a time that are tried beside the usual
  c10::DeviceType device = c10::kCPU;
};

// Steps of networks: a new one is made for each policy.
class NetworkSteps final : public StepSource {
 public:
  using Step = std::function<StepRequest(const Policy&)>;
  explicit NetworkSteps(Step step);
  StepPlan plan(const Policy& policy, std::vector<Operation>* operations) override;
  SegmentGroups groups(const Policy& policy) override;

 private:
  Step step_;
};

}  // namespace compact
