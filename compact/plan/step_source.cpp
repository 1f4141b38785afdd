// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/step_source.h"

namespace compact {

NetworkSteps::NetworkSteps(Step step) : step_(std::move(step)) {
  const StepRequest request = step_(Policy::parse("slot * = keep\n", "auto"));
  this->step = request.step;
  const auto& moment = request.optimizer.moment;
  moments = moment ? moment(Parameter{}) : "f32";
  device = request.device;
  // As Optimizer::shard_weights() has it.
  const auto& group = request.optimizer.group;
  places_weights =
      !group || group->size() == 1 || (request.optimizer.zero < 3 && request.device == c10::kCPU);
}

StepPlan NetworkSteps::plan(const Policy& policy, std::vector<Operation>* operations) {
  return plan_step(step_(policy), operations);
}

SegmentGroups NetworkSteps::groups(const Policy& policy) { return SegmentGroups(step_(policy)); }

}  // namespace compact
