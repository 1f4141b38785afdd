// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "compact/base/check.h"
#include "compact/plan/block_options.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

using testing::HasSubstr;

class Budget : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  const PlanRequest request_ =
      small_request("off", at::kFloat, {.batch = 4, .length = 96}, small_shape(3));
  const Speed speed_ = stated_speed(request_, 1e11, 1e10);
};

TEST_F(Budget, TruePeakStaysUnderItAndNeverRises) {
  BudgetPlanner planner(request_, {}, speed_);
  const int64_t off = plan_step(request_).memory.peak, least = planner.least_peak();
  EXPECT_LT(least, off * 2 / 3);
  int64_t before = INT64_MAX;
  double seconds = 0;
  int distinct = 0;
  for (int i = 0; i <= 20; ++i) {
    const int64_t budget = off - (off - least) * i / 20;
    const Chosen chosen = planner.choose(budget);
    PlanRequest r = request_;
    r.policy = chosen.policy;
    const int64_t real = run_for_real(r).peak;
    EXPECT_EQ(real, chosen.plan.memory.peak);
    EXPECT_LE(real, budget);
    EXPECT_LE(real, before);
    EXPECT_GE(chosen.seconds, seconds - 1e-9);
    EXPECT_TRUE(chosen.lossless);
    distinct += real < before;
    before = real;
    seconds = chosen.seconds;
  }
  EXPECT_GT(distinct, 5);
}

// All assignments of two layers, each planned as a whole: none is cheaper and fits.
TEST_F(Budget, NoPolicyOfTwoLayersIsCheaper) {
  PlanRequest r = request_;
  r.shape.num_hidden_layers = 2;
  const std::vector<BlockOption> options = block_options(r, "", speed_);
  const std::string loss = "slot loss.logits = chunk:tokens=64\n";
  struct Whole {
    int64_t cost, peak;
  };
  std::vector<Whole> all;
  const LayerProblem problem = layer_problem(r, loss, {&options, &options});
  for (size_t i = 0; i < options.size(); ++i) {
    for (size_t j = 0; j < options.size(); ++j) {
      r.policy = Policy::parse(loss + slot_lines({&options[i], &options[j]}), "test");
      all.push_back({options[i].bytes.cost + options[j].bytes.cost, plan_step(r).memory.peak});
      const std::vector<int> choice = {static_cast<int>(i), static_cast<int>(j)};
      EXPECT_EQ(peak_of(problem, choice), all.back().peak);  // the solver counts to the byte
    }
  }
  int64_t least = INT64_MAX, most = 0;
  for (const Whole& w : all) least = std::min(least, w.peak), most = std::max(most, w.peak);
  for (int step = 0; step < 8; ++step) {
    const int64_t budget = least + (most - least) * step / 8;
    int64_t best = INT64_MAX;
    for (const Whole& w : all) {
      if (w.peak <= budget) best = std::min(best, w.cost);
    }
    EXPECT_EQ(solve(problem, budget)->cost, best);
  }
}

TEST_F(Budget, LossyOnlyWhereNothingExactFits) {
  const int64_t least = BudgetPlanner(request_, {}, speed_).least_peak();
  Allowed all;
  all.project = true;
  BudgetPlanner planner(request_, all, speed_);
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
  BudgetPlanner planner(request_, all, speed_);
  const int64_t exact = BudgetPlanner(request_, {}, speed_).least_peak();
  const int64_t quantized = BudgetPlanner(request_, {.quantize = true}, speed_).least_peak();
  EXPECT_LT(quantized, exact);
  for (const auto& [budget, moment] :
       {std::pair(exact, ""), {exact - 1, "bf16"}, {quantized, "f8"}, {quantized - 1, "f8"}}) {
    PlanRequest r = request_;
    const Chosen chosen = planner.choose(budget);
    r.policy = chosen.policy;
    EXPECT_EQ(chosen.policy.moment("any").name, moment);
    EXPECT_EQ(chosen.policy.grad("layers.2.attn.qkv").name == "project", budget < quantized);
    EXPECT_EQ(chosen.policy.slot("layers.0.attn.input").name == "quantize", budget <= quantized);
    EXPECT_EQ(chosen.error > 0, budget <= quantized);
    EXPECT_LE(run_for_real(r).peak, budget);
  }
}

TEST_F(Budget, ImpossibleOnesSayWhatWouldFit) {
  BudgetPlanner planner(request_, {}, speed_);
  const int64_t least = planner.least_peak();
  try {
    planner.choose(least - 1);
    FAIL() << "a budget below the least peak was met";
  } catch (const BudgetError& e) {
    EXPECT_EQ(e.least, least);
    EXPECT_THAT(e.what(), HasSubstr("--per_device_train_batch_size 2"));
    EXPECT_THAT(e.what(), HasSubstr("--dtype bfloat16"));
    EXPECT_THAT(e.what(), HasSubstr("--allow project"));
  }
  EXPECT_THROW(planner.choose(0), InputError);
  EXPECT_THROW(Allowed::parse("lossy"), InputError);
}

TEST_F(Budget, RerunStepsAreThoseThatBackwardRuns) {
  for (const char* policy : {"off", "exact", "recompute", "slot layers.*.mlp.input = recompute\n",
                             "slot layers.*.attn.{qkv,out} = recompute\n"}) {
    const PlanRequest r =
        small_request(policy, at::kFloat, {.batch = 1, .length = 8}, small_shape(1));
    const Llama model(r.shape, r.policy, {.max_length = 8});
    const auto again = model.layers()[0]->segment->rerun();
    const at::Tensor ids = at::ones({1, 8}, at::kLong);
    const int64_t before = model.layers()[0]->segment->recomputed();
    torch::autograd::backward({model.loss(ids, ids, 1)}, {});
    EXPECT_EQ(model.layers()[0]->segment->recomputed() - before,
              std::count(again.begin(), again.end(), true))
        << policy;
  }
}

}  // namespace
}  // namespace compact
