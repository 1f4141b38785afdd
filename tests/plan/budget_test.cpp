// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <set>

#include "compact/base/check.h"
#include "compact/plan/bits.h"
#include "tests/plan/budgets.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

using testing::HasSubstr;

// Two layers under all pairs of options, each planned as a whole: the solver counts its peak to the
// byte, and no pair that fits a budget costs less than what the solver chooses. `check`: of a
// pair's policy.
void expect_no_pair_cheaper(PlanRequest r, const std::vector<SegmentOption>& options, int budgets,
                            const std::function<void(const Policy&, const SegmentOption&)>& check,
                            const std::string& more = "") {
  const std::string loss = "slot loss.logits = chunk:tokens=64\n" + more;
  const std::vector<std::string> names = {"layers.0", "layers.1", "final"};
  const SegmentOption kept;
  struct Whole {
    int64_t cost, peak;
  };
  std::vector<Whole> pairs;
  const auto policy_of = [&](const SegmentOption& first, const SegmentOption& second) {
    return Policy::parse(loss + slot_lines(names, {&first, &second, &kept}), "test");
  };
  const std::vector<SegmentOption> last =
      options_of(step_request(r), stated_speed(r, 1e11, 1e10))[1];
  r.policy = policy_of(options[0], options[0]);
  const LayerProblem problem =
      segment_problem(plan_step(r).memory, names, {&options, &options, &last});
  for (size_t i = 0; i < options.size(); ++i) {
    for (size_t j = 0; j < options.size(); ++j) {
      r.policy = policy_of(options[i], options[j]);
      check(r.policy, options[j]);
      pairs.push_back({options[i].bytes.cost + options[j].bytes.cost, plan_step(r).memory.peak});
      const std::vector<int> choice = {static_cast<int>(i), static_cast<int>(j), 0};
      EXPECT_EQ(peak_of(problem, choice), pairs.back().peak) << r.policy.str();
    }
  }
  int64_t least = INT64_MAX, most = 0;
  for (const Whole& w : pairs) least = std::min(least, w.peak), most = std::max(most, w.peak);
  for (int step = 0; step < budgets; ++step) {
    const int64_t budget = least + (most - least) * step / budgets;
    int64_t best = INT64_MAX;
    for (const Whole& w : pairs) {
      if (w.peak <= budget) best = std::min(best, w.cost);
    }
    EXPECT_EQ(solve(problem, budget)->cost, best);
  }
}

class Budget : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  const PlanRequest request_ =
      small_request("off", at::kFloat, {.batch = 4, .length = 96}, small_shape(3));
  const Speed speed_ = stated_speed(request_, 1e11, 1e10);
};

TEST_F(Budget, TruePeakStaysUnderItAndNeverRises) {
  BudgetSearch planner = planner_of(request_, {}, speed_);
  const int64_t off = plan_step(request_).memory.peak, least = planner.least_peak();
  EXPECT_LT(least, off * 2 / 3);
  expect_peaks_fall(planner, off, 20, 0, [&](const Policy& policy) {
    PlanRequest r = request_;
    r.policy = policy;
    return step_request(r);
  });
}

TEST_F(Budget, NoPolicyOfTwoLayersIsCheaper) {
  PlanRequest r = request_;
  r.shape.num_hidden_layers = 2;
  expect_no_pair_cheaper(r, block_options(r, speed_), 8,
                         [](const Policy&, const SegmentOption&) {});
}

// The updates of released weights take more than the backward pass: between blocks is the peak.
TEST_F(Budget, NorIsOneWithReleasedWeights) {
  LlamaConfig shape = small_shape(2);
  shape.block.hidden = 128;
  shape.block.intermediate = 512;
  shape.block.head_dim = 32;
  shape.vocab_size = 64;
  PlanRequest r = small_request("off", at::kFloat, {.batch = 1, .length = 64, .clip = false}, shape,
                                muon_optimizer);
  int between = 0;
  expect_no_pair_cheaper(
      r, block_options(r, stated_speed(r, 1e11, 1e10)), 8,
      [&](const Policy& policy, const SegmentOption&) {
        PlanRequest whole = r;
        whole.policy = policy;
        between += str(plan_step(whole).memory.at_peak.moment) == "backward before layers.1";
      },
      "grad * = full:release=true\n");
  EXPECT_GT(between, 0);
}

TEST_F(Budget, LossyOnlyWhereNothingExactFits) {
  const int64_t least = planner_of(request_, {}, speed_).least_peak();
  Allowed all;
  all.project = true;
  BudgetSearch planner = planner_of(request_, all, speed_);
  const int64_t lossy = planner.least_peak();
  EXPECT_LT(lossy, least);
  const Chosen exact = planner.choose(least);
  EXPECT_TRUE(exact.lossless);
  EXPECT_EQ(exact.error, 0);
  const Chosen projected = planner.choose((least + lossy) / 2);
  EXPECT_FALSE(projected.lossless);
  EXPECT_GT(projected.error, 0);
  PlanRequest r = request_;
  r.policy = projected.policy;
  EXPECT_LE(run_for_real(r).peak, (least + lossy) / 2);
}

TEST_F(Budget, MomentsAreQuantizedBeforeGradientsAreProjected) {
  Allowed all;
  all.quantize = all.project = true;
  BudgetSearch planner = planner_of(request_, all, speed_);
  const int64_t exact = planner_of(request_, {}, speed_).least_peak();
  const int64_t quantized = planner_of(request_, {.quantize = true}, speed_).least_peak();
  EXPECT_LT(quantized, exact);
  for (const auto& [budget, moment] :
       {std::pair(exact, ""), {exact - 1, "bf16"}, {quantized, "f8"}, {quantized - 1, "f8"}}) {
    PlanRequest r = request_;
    const Chosen chosen = planner.choose(budget);
    r.policy = chosen.policy;
    EXPECT_EQ(chosen.policy.moment("any"), moment);
    EXPECT_EQ(chosen.policy.grad("layers.2.attn.qkv").name == "project", budget < quantized);
    EXPECT_EQ(chosen.policy.slot("layers.0.attn.input").first().name == "quantize",
              budget <= quantized);
    EXPECT_EQ(chosen.error > 0, budget <= quantized);
    EXPECT_LE(run_for_real(r).peak, budget);
  }
}

// Options of two layers with codecs among them, mixed with exact ones.
TEST_F(Budget, NoMixOfCodecsIsCheaper) {
  PlanRequest r = request_;
  r.shape.num_hidden_layers = 2;
  const double error_cost = 1e6;
  const std::vector<SegmentOption> all = block_options(r, speed_, error_cost);
  std::vector<const SegmentOption*> chosen;  // of every kind some
  int whole = 0, single = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const SegmentOption& o = all[i];
    EXPECT_EQ(o.error > 0, !o.rounded.empty());
    EXPECT_EQ(o.bytes.cost, o.nanoseconds + std::llround(o.error * error_cost));
    whole += o.most != nullptr;
    single += !o.rounded.empty() && !o.most;
    if (i % 3 == 0) chosen.push_back(&o);
  }
  EXPECT_GT(whole, 10);
  EXPECT_GT(single, 5);
  std::vector<SegmentOption> some;
  for (const SegmentOption* o : chosen) some.push_back(*o);
  expect_no_pair_cheaper(r, some, 12, [](const Policy& policy, const SegmentOption& second) {
    for (const auto& [slot, choice] : second.rounded) {
      EXPECT_EQ(policy.slot("layers.1." + slot).text(), choice->spec);
    }
    for (const std::string& slot : second.rebuilt) {
      EXPECT_EQ(policy.slot("layers.1." + slot).text(), "recompute");
    }
  });
}

// The peak when all blocks hold all they keep in 4 bits, the most that rounding was used for once.
TEST_F(Budget, CodecsAreChosenLayerByLayer) {
  PlanRequest r = request_;
  r.shape.num_hidden_layers = 4;
  const int64_t exact = planner_of(r, {}, speed_).least_peak();
  PlanRequest moments = r;
  const auto optimizer = r.optimizer;
  moments.optimizer = [optimizer](const Policy&) {
    return optimizer(Policy::parse("moment * = f8\n", "test"));
  };
  const int64_t lossless = planner_of(moments, {}, speed_).least_peak();  // beside moments
  EXPECT_LT(lossless, exact);
  const std::vector<SegmentOption> options = block_options(r, speed_);
  int64_t four = INT64_MAX;
  for (const SegmentOption& o : options) {
    SegmentOption q = o;
    q.most = &codec_choices()[1];
    PlanRequest all = moments;
    all.policy = Policy::parse(
        slot_lines({"layers.0", "layers.1", "layers.2", "layers.3"}, {&q, &q, &q, &q}) +
            "slot loss.logits = chunk:tokens=64\n",
        "test");
    four = std::min(four, plan_step(all).memory.peak);
  }
  ASSERT_LT(four, lossless);
  const CodecChoice& in_four = codec_choices()[1];
  BudgetSearch planner = planner_of(r, {.quantize = true}, speed_);
  EXPECT_LT(planner.least_peak(), four);
  std::set<std::string> ways;
  int mixed = 0;
  int64_t before = INT64_MAX;
  for (int i = 1; i <= 16; ++i) {
    const int64_t budget = lossless - (lossless - four) * i / 16;
    const Chosen chosen = planner.choose(budget);
    EXPECT_FALSE(chosen.lossless);
    EXPECT_EQ(chosen.policy.moment("any"), "f8");
    EXPECT_GT(chosen.error, 0);
    EXPECT_LE(chosen.error, in_four.error) << i;
    if (i < 16) {
      EXPECT_LT(chosen.error, .999 * in_four.error) << i << chosen.policy.str();
    }
    EXPECT_LE(chosen.plan.memory.peak, before);
    before = chosen.plan.memory.peak;
    PlanRequest real = r;
    real.policy = chosen.policy;
    EXPECT_EQ(run_for_real(real).peak, chosen.plan.memory.peak);
    EXPECT_LE(chosen.plan.memory.peak, budget);
    // The error said is that of the policy.
    double error = 0;
    std::set<std::string> bits;
    for (int64_t layer = 0; layer < 4; ++layer) {
      double sum = 0, all = 0;
      for (const SlotBytes& s : chosen.plan.memory.slots) {
        if (!s.name.starts_with(cat("layers.", layer, ".")) || s.treatment == "recompute" ||
            s.name.ends_with("extras")) {
          continue;
        }
        all += static_cast<double>(s.if_kept);
        bits.insert(s.treatment);
        if (s.treatment.starts_with("quantize")) {
          const auto choice = std::ranges::find_if(codec_choices(), [&](const CodecChoice& c) {
            return s.treatment == c.spec || s.treatment == c.spec + ",along=last";
          });
          sum += choice->error * static_cast<double>(s.if_kept);
        }
      }
      error += sum / all / 4;
    }
    EXPECT_NEAR(chosen.error, error, 1e-12);
    mixed += bits.size() > 1;
    ways.insert(chosen.policy.str());
  }
  EXPECT_GT(ways.size(), 4);
  EXPECT_GT(mixed, 3);
  for (int64_t budget = four; budget > planner.least_peak(); budget -= four / 50) {
    const int64_t peak = planner.choose(budget).plan.memory.peak;
    EXPECT_LE(peak, before);
    before = peak;
  }
}

// Lines for layers.0, layers.1, ...
std::string lines_of(const std::vector<const SegmentOption*>& layers) {
  std::vector<std::string> names;
  for (size_t i = 0; i < layers.size(); ++i) names.push_back(cat("layers.", i));
  return slot_lines(names, layers);
}

TEST(SlotLines, OneForAllLayersThatAgree) {
  const CodecChoice &in8 = codec_choices()[0], &in4 = codec_choices()[1], &in2 = codec_choices()[2];
  const SegmentOption exact, rebuilt{.rebuilt = {"attn.norm"}},
      four{.rebuilt = {"attn.norm"}, .rounded = {{"attn.input", &in4}}, .most = &in4},
      one{.rebuilt = {"attn.norm"}, .rounded = {{"mlp.product", &in2}}};
  EXPECT_EQ(lines_of({&exact, &exact}), "");
  EXPECT_EQ(lines_of({&four, &four}),
            "slot layers.* = quantize:bits=4\nslot layers.*.attn.norm = recompute\n");
  const std::string mixed = lines_of({&four, &one, &exact, &four});
  EXPECT_EQ(mixed,
            "slot layers.{0,3}.* = quantize:bits=4\nslot layers.1.mlp.product = quantize:bits=2\n"
            "slot layers.{0,1,3}.attn.norm = recompute\n");
  const Policy p = Policy::parse(mixed, "test");
  EXPECT_EQ(p.slot("layers.3.mlp.product").text(), "quantize:bits=4");
  EXPECT_EQ(p.slot("layers.3.attn.norm").text(), "recompute");
  EXPECT_EQ(p.slot("layers.1.mlp.product").text(), "quantize:bits=2");
  EXPECT_EQ(p.slot("layers.1.attn.qkv").text(), "keep");
  EXPECT_EQ(p.slot("layers.2.attn.norm").text(), "keep");
  // Layers that follow each other are a range.
  EXPECT_EQ(lines_of({&rebuilt, &rebuilt, &rebuilt, &rebuilt, &exact, &rebuilt}),
            "slot layers.{0..3,5}.attn.norm = recompute\n");
  const SegmentOption finer{.rounded = {{"attn.input", &in4}, {"attn.out", &in8}}, .most = &in4};
  EXPECT_EQ(lines_of({&finer, &rebuilt}),
            "slot layers.0.* = quantize:bits=4\nslot layers.0.attn.out = quantize:bits=8\n"
            "slot layers.1.attn.norm = recompute\n");
  EXPECT_EQ(lines_of({&rebuilt}), "slot layers.*.attn.norm = recompute\n");
}

TEST_F(Budget, ImpossibleOnesSayTheLeastPeak) {
  BudgetSearch planner = planner_of(request_, {}, speed_);
  expect_impossible_says_what_would_fit(planner);
  EXPECT_THROW(planner.choose(0), InputError);
}

TEST(Allowed, IsReadAndWritten) {
  for (const char* text : {"lossless", "quantize", "project", "quantize,project"}) {
    EXPECT_EQ(Allowed::parse(text).str(), text);
  }
  EXPECT_EQ(Allowed::parse("project,quantize,lossless").str(), "quantize,project");
  EXPECT_THROW(Allowed::parse("lossy"), InputError);
}

TEST_F(Budget, RerunStepsAreThoseThatBackwardRuns) {
  for (const char* policy : {"off", "exact", "recompute", "slot layers.*.mlp.input = recompute\n",
                             "slot layers.*.attn.{qkv,out} = recompute\n"}) {
    const PlanRequest r =
        small_request(policy, at::kFloat, {.batch = 1, .length = 8}, small_shape(1));
    const Llama model(r.shape, r.policy, {.max_length = 8});
    const auto again = model.segments()[0]->rerun();
    const at::Tensor ids = at::ones({1, 8}, at::kLong);
    PassReport report;
    torch::autograd::backward({model.loss({ids}, ids, {}, &report)}, {});
    EXPECT_EQ(*report.rebuilt, std::count(again.begin(), again.end(), true)) << policy;
  }
}

}  // namespace
}  // namespace compact
