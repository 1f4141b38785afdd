// SPDX-License-Identifier: Apache-2.0
#include "compact/python/policy_search.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/plan/gpu_card.h"
#include "compact/plan/speed.h"

namespace compact {
namespace {

using TracePtr = c10::intrusive_ptr<StepTrace>;

// As the package takes it: a preset, whose lines may match nothing, by its name.
std::string given(const Policy& policy) {
  const std::string lines = policy.str();
  for (const EmbeddedPreset& preset : embedded_presets()) {
    if (Policy::preset(preset.name).str() == lines) return preset.name;
  }
  return lines;
}

class ProgramSteps final : public StepSource {
 public:
  // Whether weights are updated inside the backward pass is the optimizer's setting, no policy's:
  // as if gradients were clipped.
  explicit ProgramSteps(const std::string& moments) {
    this->moments = moments;
    chunks = {256};
    device = meta_device();
  }
  StepPlan plan(const Policy& policy, std::vector<Operation>* operations) override {
    const auto [trace, reserved] = run(given(policy), operations != nullptr, /*segments=*/false);
    if (operations) *operations = trace->operations();
    return {.memory = trace->memory(), .reserved = reserved};
  }
  SegmentGroups groups(const Policy& policy) override {
    // A loss shows its head where it is made in chunks.
    std::string lines = given(policy);
    if (lines.ends_with('\n')) lines += "slot loss.logits = chunk\n";
    if (lines != known_of_) {
      known_ = std::get<0>(run(lines, /*operations=*/false, /*segments=*/true))->groups();
      known_of_ = lines;
    }
    return known_;
  }

 private:
  static std::tuple<TracePtr, int64_t> run(const std::string& lines, bool operations,
                                           bool segments) {
    static const c10::OperatorHandle step =
        c10::Dispatcher::singleton().findSchemaOrThrow("compact::planned_step", "");
    torch::jit::Stack stack{lines, operations, segments};
    step.callBoxed(stack);
    const int64_t reserved = stack.at(1).toInt();
    COMPACT_CHECK(reserved >= 0, "preset ", lines, " is not for this model");
    return {stack.at(0).toCustomClass<StepTrace>(), reserved};
  }

  std::string known_of_;
  SegmentGroups known_;
};

Speed speed_of(const SegmentGroups& groups, bool half, bool tf32, const PolicySearch::Speeds& known,
               PolicySearch::Speeds& made) {
  if (meta_device() == c10::kCPU) {
    return measured_speed(groups, groups.key(),
                          [&](const std::string& key, auto usable, auto measure) {
                            if (const auto found = known.find(key); found != known.end()) {
                              const std::vector<std::vector<double>>& rows = found->value();
                              const MeasuredSteps m{.segments = {rows.begin() + 1, rows.end()},
                                                    .products = rows.front()[1],
                                                    .bytes = rows.front()[0]};
                              if (usable(m)) return m;
                            }
                            const MeasuredSteps m = measure();
                            std::vector<std::vector<double>> rows = {{m.bytes, m.products}};
                            rows.insert(rows.end(), m.segments.begin(), m.segments.end());
                            made.insert(key, rows);
                            return m;
                          });
  }
  const GpuRates rates = reached_rates(planned_card(), tf32);
  Speed speed = stated_speed(groups, half ? rates.half : rates.single, rates.bytes);
  speed.gpu = rates;
  return speed;
}

}  // namespace

PolicySearch::PolicySearch(const std::string& allow, const std::string& moments, bool half,
                           bool tf32, const Speeds& known) {
  auto steps = std::make_unique<ProgramSteps>(moments);
  const SegmentGroups groups = steps->groups(Policy::parse("slot * = keep\n", "auto"));
  Allowed allowed = Allowed::parse(allow);
  allowed.project = allowed.project && Variants::any_projectable(groups);
  const Speed speed = speed_of(groups, half, tf32, known, speeds_);
  search_ = std::make_unique<BudgetSearch>(std::move(steps), allowed, speed);
}

std::optional<PolicySearch::Found> PolicySearch::find(int64_t budget) {
  const std::optional<Chosen> chosen = search_->find(budget);
  if (!chosen) return std::nullopt;
  return Found{given(chosen->policy), chosen->seconds, chosen->added_seconds, chosen->error,
               chosen->lossless};
}

}  // namespace compact
