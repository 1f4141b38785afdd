// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "compact/base/check.h"
#include "compact/models/resnet/resnet.h"
#include "tests/plan/budgets.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

using testing::HasSubstr;

constexpr int64_t kBatch = 8;

const ResnetConfig kSmall{.blocks = {1, 2}, .width = 8, .small_images = true, .classes = 5};
// Deep enough for what it saves to pass the scratch of one convolution, of which those in bf16 take
// much where the CPU has no instructions for them.
const ResnetConfig kDeep{.blocks = {4, 4}, .width = 8, .small_images = true, .classes = 5};
const ResnetConfig kBottleneck{.blocks = {1, 1}, .width = 8, .bottleneck = true, .classes = 5};

using NetworkMaker = std::function<std::unique_ptr<Network>(const Policy&, const NetworkOptions&)>;
using InputMaker = std::function<Tensors(at::Device)>;

NetworkMaker resnet(const ResnetConfig& config) {
  return [config](const Policy& policy, const NetworkOptions& options) {
    return std::make_unique<Resnet>(config, policy, options);
  };
}

std::unique_ptr<Network> encoder(const Policy& policy, const NetworkOptions& options) {
  return std::make_unique<Encoder>(small_encoder(), policy, options);
}

Tensors images(at::Device device) { return {at::zeros({kBatch, 3, 32, 32}, at::device(device))}; }

Tensors texts(at::Device device) { return encoder_inputs(device, kBatch, 48); }

struct SearchSetting {
  const char* name;
  NetworkMaker network;
  InputMaker inputs = images;
  at::ScalarType dtype = at::kFloat;
  int64_t accumulation = 1;
  bool clip = true;
};
void PrintTo(const SearchSetting& s, std::ostream* out) { *out << s.name; }

StepRequest request_of(const SearchSetting& s, const Policy& policy) {
  return {.network =
              [s, policy](at::Device device) {
                return s.network(policy, {.device = device, .dtype = s.dtype});
              },
          .micro_batch =
              [s](at::Device device, int64_t) {
                return StepInputs{s.inputs(device),
                                  at::zeros({kBatch}, at::device(device).dtype(at::kLong))};
              },
          .optimizer = {.kind = &sgd_optimizer,
                        .moment =
                            [policy](const Parameter& p) {
                              const std::string name = policy.moment(p.name);
                              return name.empty() ? "f32" : name;
                            }},
          .step = {.accumulation = s.accumulation, .clip = s.clip}};
}

class SegmentBudget : public testing::TestWithParam<SearchSetting> {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  StepRequest step(const Policy& policy) const { return request_of(GetParam(), policy); }
  Speed speed() const { return stated_speed(SegmentGroups(step(Policy())), 1e11, 1e10); }
  BudgetSearch planner(Allowed allowed = {}) const {
    return planner_of([this](const Policy& p) { return step(p); }, allowed, speed());
  }
};

TEST_P(SegmentBudget, TruePeakStaysUnderItAndNeverRises) {
  BudgetSearch planner = this->planner();
  const int64_t off = plan_step(step(Policy::preset("off"))).memory.peak,
                exact = plan_step(step(Policy::preset("exact"))).memory.peak,
                least = planner.least_peak();
  EXPECT_LT(least, exact);
  EXPECT_LT(least, off * 3 / 4);
  expect_peaks_fall(planner, off, 12, 0.01, [&](const Policy& policy) { return step(policy); });
}

// No assignment drawn at random costs less than what is chosen under its own peak.
TEST_P(SegmentBudget, NoAssignmentIsCheaper) {
  BudgetSearch planner = this->planner();
  const Speed speed = this->speed();
  const SegmentGroups groups(step(Policy()));
  std::mt19937 random(5);
  const auto named = step(Policy()).network(at::kMeta);
  for (int round = 0; round < 60; ++round) {
    std::string text = "slot * = keep\n";
    const unsigned part = 1 + random() % 4;  // of five is rebuilt
    for (const Segment* s : named->segments()) {
      for (const SlotUse& use : s->uses()) {
        if (use.signs) {
          text += cat("slot ", use.name, " = mask:of=sign\n");
        } else if (use.rebuilt && random() % 5 < part) {
          text += cat("slot ", use.name, " = recompute\n");
        }
      }
    }
    const Policy policy = Policy::parse(text, "test");
    double added = 0;
    const auto network = step(policy).network(at::kMeta);
    for (size_t i = 0; i < network->segments().size(); ++i) {
      const std::vector<bool> again = network->segments()[i]->rerun();
      for (size_t s = 0; s < again.size(); ++s)
        added += again[s] ? speed.segments[groups.segments()[i].group][s] : 0;
    }
    added *= static_cast<double>(GetParam().accumulation);
    const int64_t peak = plan_step(step(policy)).memory.peak;
    const Chosen chosen = planner.choose(peak);
    EXPECT_LE(chosen.plan.memory.peak, peak);
    EXPECT_LE(chosen.added_seconds, added + 1e-7) << text;
  }
}

// The bytes of segments by themselves and those of the rest of one whole step add up to the peak of
// any step, exactly.
TEST_P(SegmentBudget, PredictedPeaksArePlanned) {
  const StepRequest kept = step(Policy::parse("slot * = keep", "test"));
  const SegmentGroups groups(kept);
  const auto options = options_of(kept, speed(), 1e6);
  std::vector<std::string> names;
  std::vector<const std::vector<SegmentOption>*> each;
  std::vector<const SegmentOption*> chosen;
  for (const SegmentInfo& s : groups.segments()) {
    names.push_back(s.name);
    each.push_back(&options[s.group]);
    chosen.push_back(&each.back()->front());
  }
  const auto planned = [&] {
    return plan_step(step(Policy::parse(keep_lines(groups.segments()) + slot_lines(names, chosen),
                                        "test")))
        .memory;
  };
  const LayerProblem problem = segment_problem(planned(), names, each);
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    std::vector<int> choice;
    for (size_t i = 0; i < names.size(); ++i) {
      choice.push_back(static_cast<int>(random() % each[i]->size()));
      chosen[i] = &(*each[i])[static_cast<size_t>(choice[i])];
    }
    EXPECT_EQ(peak_of(problem, choice), planned().peak) << slot_lines(names, chosen);
  }
}

TEST_P(SegmentBudget, LossyOnlyWhereNothingExactFits) {
  const int64_t exact = planner().least_peak();
  BudgetSearch lossy = planner({.quantize = true});
  const int64_t least = lossy.least_peak();
  EXPECT_LT(least, exact * 5 / 6);
  EXPECT_TRUE(lossy.choose(exact).lossless);
  double error = 0;
  for (int i = 1; i <= 6; ++i) {
    const int64_t budget = exact - (exact - least) * i / 6;
    const Chosen chosen = lossy.choose(budget);
    EXPECT_FALSE(chosen.lossless);
    error = chosen.error;
    const int64_t real = run_for_real(step(chosen.policy)).peak;
    EXPECT_LE(std::abs(real - chosen.plan.memory.peak), real / 100);
    EXPECT_LE(chosen.plan.memory.peak, budget);
  }
  EXPECT_GT(error, 0);
}

TEST_P(SegmentBudget, ImpossibleOnesSayWhatWouldFit) {
  BudgetSearch planner = this->planner();
  expect_impossible_says_what_would_fit(planner);
}

TEST(SegmentGroups, OfEncodersCountsTheirProducts) {
  const EncoderConfig c = small_encoder();
  const auto d = static_cast<double>(c.hidden_size), m = static_cast<double>(c.intermediate_size);
  const double length = 48, tokens = kBatch * length;
  const SegmentGroups groups(request_of({"encoder", encoder, texts}, Policy()));
  ASSERT_EQ(groups.segments().size(), c.num_hidden_layers + 1);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    double products = 0;
    for (const Work& w : groups.segments()[i].work) products += w.products;
    EXPECT_EQ(products, tokens * (2 * (4 * d * d + 2 * d * m) + 4 * length * d));
  }
}

const SearchSetting kSettings[] = {{"small", resnet(kSmall)},
                                   {"bottleneck", resnet(kBottleneck)},
                                   {"bf16", resnet(kDeep), images, at::kBFloat16},
                                   {"accumulated", resnet(kSmall), images, at::kFloat, 2},
                                   {"released", resnet(kBottleneck), images, at::kFloat, 1, false},
                                   {"encoder", encoder, texts},
                                   {"encoder_accumulated", encoder, texts, at::kFloat, 2}};

INSTANTIATE_TEST_SUITE_P(Nets, SegmentBudget, testing::ValuesIn(kSettings),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace compact
