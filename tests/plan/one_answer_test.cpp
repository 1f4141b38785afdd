// SPDX-License-Identifier: Apache-2.0
// One budget has one answer, whatever was asked before: of neighbouring budgets the smaller never
// has the higher peak, the larger never the slower policy, on the CPU and by the model of CUDA's
// allocator.
#include <gtest/gtest.h>

#include "compact/base/check.h"
#include "compact/models/resnet/resnet.h"
#include "compact/plan/search.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

constexpr int kBudgets = 120;

struct Setting {
  std::string name;
  std::function<BudgetSearch(Allowed)> planner;
  std::function<StepPlan(const char* preset)> plan;
};
void PrintTo(const Setting& s, std::ostream* out) { *out << s.name; }

Setting transformer(const std::string& name, c10::DeviceType device, const OptimizerInfo& kind,
                    bool clip, int64_t batch) {
  const LlamaConfig shape{
      .block = block_shape(512, 1376, 8, 8, 64), .num_hidden_layers = 8, .vocab_size = 8192};
  PlanRequest r = small_request("off", at::kBFloat16, {.batch = batch, .length = 256, .clip = clip},
                                shape, kind);
  r.device = device;
  return {name, [r](Allowed a) { return planner_of(r, a, stated_speed(r, 2e14, 1.5e12)); },
          [r](const char* preset) { return plan_step(with_policy(r, Policy::preset(preset))); }};
}

using MakeNetwork = std::function<std::unique_ptr<Network>(const Policy&, at::Device)>;
using MakeInputs = std::function<Tensors(at::Device)>;

Setting segments(const std::string& name, c10::DeviceType device, const MakeNetwork& network,
                 const MakeInputs& inputs, int64_t batch, const std::string& usual = "f32") {
  const auto step = [=](const Policy& policy) {
    return StepRequest{
        .network = [=](at::Device d) { return network(policy, d); },
        .micro_batch =
            [=](at::Device d, int64_t) {
              return StepInputs{inputs(d), at::zeros({batch}, at::device(d).dtype(at::kLong))};
            },
        .optimizer = {.kind = &adamw_optimizer,
                      .moment =
                          [policy, usual](const Parameter& p) {
                            const std::string moment = policy.moment(p.name);
                            return moment.empty() ? usual : moment;
                          }},
        .device = device};
  };
  return {name,
          [=](Allowed allowed) {
            return planner_of(step, allowed,
                              stated_speed(SegmentGroups(step(Policy())), 2e14, 1.5e12));
          },
          [=](const char* preset) { return plan_step(step(Policy::preset(preset))); }};
}

Setting encoder_step(const std::string& name, c10::DeviceType device, const EncoderConfig& c,
                     int64_t batch, int64_t length, at::ScalarType type) {
  return segments(
      name, device,
      [c, type](const Policy& policy, at::Device d) {
        return std::make_unique<Encoder>(c, policy, NetworkOptions{.device = d, .dtype = type});
      },
      [=](at::Device d) { return encoder_inputs(d, batch, length); }, batch,
      type == at::kFloat ? "f32" : "bf16");
}

Setting encoder_network(const std::string& name, c10::DeviceType device) {
  EncoderConfig c = small_encoder();
  c.hidden_size = 256;
  c.intermediate_size = 1024;
  c.num_hidden_layers = 6;
  return encoder_step(name, device, c, 16, 128, at::kFloat);
}

Setting resnet_network(const std::string& name, c10::DeviceType device) {
  constexpr int64_t kBatch = 64;
  const ResnetConfig c{.blocks = {2, 2, 2}, .width = 32, .small_images = true, .classes = 10};
  return segments(
      name, device,
      [c](const Policy& policy, at::Device d) {
        return std::make_unique<Resnet>(c, policy, NetworkOptions{.device = d});
      },
      [](at::Device d) {
        return Tensors{at::zeros({kBatch, 3, 32, 32}, at::device(d))};
      },
      kBatch);
}

class OneAnswer : public testing::TestWithParam<Setting> {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  static void TearDownTestSuite() { prepare_meta(c10::kCPU); }
};

TEST_P(OneAnswer, ForEveryBudget) {
  BudgetSearch planner = GetParam().planner({});
  const int64_t least = planner.least_peak(), off = GetParam().plan("off").reserved;
  ASSERT_LT(least, off);
  EXPECT_FALSE(planner.find(least - 1));
  std::vector<int64_t> budgets;
  std::vector<Chosen> answers;
  int distinct = 0;
  for (int i = 0; i < kBudgets; ++i) {
    budgets.push_back(least + (off - least) * i / (kBudgets - 1));
    std::optional<Chosen> chosen = planner.find(budgets.back());
    ASSERT_TRUE(chosen) << i;
    EXPECT_LE(chosen->plan.reserved, budgets.back()) << i;
    EXPECT_TRUE(chosen->lossless);
    if (i > 0) {
      EXPECT_GE(chosen->plan.reserved, answers.back().plan.reserved) << i;
      EXPECT_LE(chosen->seconds, answers.back().seconds + 1e-12) << i;
      distinct += chosen->policy.str() != answers.back().policy.str();
    }
    answers.push_back(std::move(*chosen));
  }
  EXPECT_EQ(answers.front().plan.reserved, least);
  EXPECT_GT(distinct, 2);  // of a GPU whole segments of memory are what differs
  // The same of one who was asked little else, the other way round.
  BudgetSearch other = GetParam().planner({});
  for (int i = kBudgets - 1; i >= 0; i -= 17) {
    EXPECT_EQ(other.choose(budgets[i]).policy.str(), answers[i].policy.str()) << i;
  }
  EXPECT_EQ(other.least_peak(), least);
}

using Presets = std::vector<std::string>;
const Presets kLossless = {"off", "exact", "recompute"};
const Presets kQuantized = {"gact-l1.1", "gact-l1", "gact-l1.2",
                            "gact-l2.1", "gact-l2", "gact-l2.2"};
const Presets kProjected = {"compact", "compact-paper"};

// A budget that a preset fits, losing no more than is allowed, is never refused.
void expect_no_preset_below(const Setting& setting, Allowed allowed, const Presets& presets) {
  BudgetSearch planner = setting.planner(allowed);
  int fitting = 0;
  for (const std::string& preset : presets) {
    int64_t reserved = 0;
    try {
      reserved = setting.plan(preset.c_str()).reserved;
    } catch (const InputError&) {  // no slot of this network is in the preset
      continue;
    }
    ++fitting;
    EXPECT_LE(planner.least_peak(), reserved) << setting.name << " " << preset;
    const std::optional<Chosen> chosen = planner.find(reserved);
    ASSERT_TRUE(chosen) << setting.name << " " << preset;
    EXPECT_LE(chosen->plan.reserved, reserved) << setting.name << " " << preset;
  }
  EXPECT_GE(fitting, 2) << setting.name;
}

TEST_P(OneAnswer, NoBudgetOfAPresetIsRefused) {
  expect_no_preset_below(GetParam(), {}, kLossless);
  expect_no_preset_below(GetParam(), {.quantize = true}, kQuantized);
}

// Nor does it take more to be allowed more.
TEST_P(OneAnswer, AllowingMoreNeverRaisesTheLeastPeak) {
  const auto least = [](Allowed allowed) { return GetParam().planner(allowed).least_peak(); };
  const int64_t lossless = least({}), quantized = least({.quantize = true});
  EXPECT_LE(quantized, lossless);
  if (GetParam().name.starts_with("resnet")) return;  // no matrices
  const int64_t projected = least({.project = true});
  EXPECT_LE(projected, lossless);
  const Allowed all{.quantize = true, .project = true};
  EXPECT_LE(least(all), std::min(quantized, projected));
  expect_no_preset_below(GetParam(), {.project = true}, kProjected);
  expect_no_preset_below(GetParam(), all, kProjected);
}

// Where the caching allocator reserves less for `exact` than for what takes fewer bytes.
TEST(LeastPeak, OfLlama3On80GibibytesIsNotAboveItsPresets) {
  install_counting_allocator();
  const LlamaConfig shape{
      .block = block_shape(4096, 14336, 32, 8, 128), .num_hidden_layers = 32, .vocab_size = 128256};
  PlanRequest r = small_request("off", at::kBFloat16, {.batch = 1, .length = 2048}, shape);
  r.device = c10::kCUDA;
  expect_no_preset_below(
      {"llama3", [r](Allowed a) { return planner_of(r, a, stated_speed(r, 6e14, 2.8e12)); },
       [r](const char* preset) { return plan_step(with_policy(r, Policy::preset(preset))); }},
      {}, kLossless);
  prepare_meta(c10::kCPU);
}

// Moments in f8 take more of a GPU than they save where gradients are projected, since they are
// unpacked for their update; codes of 2 bits take less than any assignment without them.
TEST(LeastPeak, OfBertIsNotAboveItsPresetsWhateverIsAllowed) {
  install_counting_allocator();
  EncoderConfig c = small_encoder();
  c.hidden_size = 768;
  c.intermediate_size = 3072;
  c.num_hidden_layers = 4;
  c.num_attention_heads = 12;
  c.vocab_size = 30522;
  const Setting bert = encoder_step("bert", c10::kCUDA, c, 8, 256, at::kBFloat16);
  const Allowed all{.quantize = true, .project = true};
  expect_no_preset_below(bert, {.quantize = true}, kQuantized);
  expect_no_preset_below(bert, all, kProjected);
  EXPECT_LE(bert.planner(all).least_peak(), bert.planner({.project = true}).least_peak());
  prepare_meta(c10::kCPU);
}

// The least peak is of all policies that lose nothing, whatever their chunks of logits: one chunk
// makes the head's gradient in bf16, several sum it in f32.
TEST(LeastPeak, NoPresetWithoutLossIsBelow) {
  for (const bool clip : {true, false}) {
    for (const int64_t accumulation : {1, 2}) {
      LlamaConfig shape = small_shape(2);
      shape.vocab_size = 32000;
      const PlanRequest r = small_request(
          "off", at::kBFloat16,
          {.batch = 1, .length = 128, .accumulation = accumulation, .clip = clip}, shape);
      BudgetSearch planner = planner_of(r, {}, stated_speed(r, 2e11, 1.5e10));
      for (const char* preset : {"off", "exact", "recompute"}) {
        const int64_t peak = plan_step(with_policy(r, Policy::preset(preset))).memory.peak;
        EXPECT_GE(peak, planner.least_peak()) << preset << " " << accumulation << " " << clip;
        EXPECT_LE(planner.choose(peak).plan.memory.peak, peak) << preset;
      }
    }
  }
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const c10::DeviceType device : {c10::kCPU, c10::kCUDA}) {
    const auto named = [&](const char* name) {
      return cat(name, device == c10::kCUDA ? "_cuda" : "_cpu");
    };
    all.push_back(transformer(named("adamw_clipping"), device, adamw_optimizer, true, 16));
    all.push_back(transformer(named("muon_release"), device, muon_optimizer, false, 16));
    all.push_back(transformer(named("muon_release_small_batch"), device, muon_optimizer, false, 2));
    all.push_back(encoder_network(named("encoder"), device));
    all.push_back(resnet_network(named("resnet"), device));
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Steps, OneAnswer, testing::ValuesIn(settings()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace compact
