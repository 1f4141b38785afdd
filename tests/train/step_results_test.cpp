// SPDX-License-Identifier: Apache-2.0
// The results of steps, read on time and late.
#include "compact/train/step_results.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/config/exit_codes.h"

namespace compact {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

at::Tensor number(float value) { return at::full({}, value); }

class ResultsOfSteps : public testing::Test {
 protected:
  Parameter weight_{.name = "w", .weight = at::zeros({2, 2})};
  Optimizer optimizer_{{&weight_}, {}};
  StepResults results(bool late, bool releases = false) {
    return StepResults(at::kCPU, optimizer_, late, releases);
  }
  static void launch(StepResults& r, int64_t step, std::vector<float> losses, float norm,
                     double before = 0) {
    r.begin(step, before);
    for (const float loss : losses) r.add_loss(number(loss));
    r.add_norm(number(norm));
  }
};

TEST_F(ResultsOfSteps, AreReadOnTimeOrOneStepLate) {
  for (const bool late : {false, true}) {
    StepResults r = results(late);
    EXPECT_EQ(r.guard().defined(), late);
    EXPECT_THAT(r.take(false), IsEmpty());
    for (int64_t step = 1; step <= 3; ++step) {
      const auto x = static_cast<float>(step);
      launch(r, step, {x, 0.1f}, 10 * x, 0.25);
      const std::vector<StepResults::Step> taken = r.take(false);
      const int64_t expected = late ? step - 1 : step;
      ASSERT_EQ(taken.size(), expected > 0 ? 1 : 0) << step;
      if (expected == 0) continue;
      EXPECT_EQ(taken[0].number, expected);
      EXPECT_EQ(taken[0].loss, 0.25 + static_cast<double>(expected) + double{0.1f});
      EXPECT_EQ(taken[0].norm, 10 * expected);
    }
    EXPECT_EQ(r.take(true).size(), late ? 1 : 0);
    EXPECT_THAT(r.take(true), IsEmpty());
  }
}

TEST_F(ResultsOfSteps, KnowTheLossOfAnUpdateThatIsNotDone) {
  for (const bool late : {false, true}) {
    StepResults r = results(late);
    launch(r, 1, {1, 2}, 1);
    r.begin(2, 0.5);
    EXPECT_EQ(r.loss(), 0.5);
    r.add_loss(number(3));
    r.add_loss(number(4));
    EXPECT_EQ(r.loss(), 7.5);
    EXPECT_EQ(r.take(true).back().loss, 3);
  }
}

TEST_F(ResultsOfSteps, NameTheStepThatWasNotFinite) {
  StepResults on_time = results(false);
  on_time.begin(4, 0);
  EXPECT_THAT([&] { on_time.add_loss(number(NAN)); },
              ThrowsMessage<NonFiniteError>("step 4: the loss is nan; stopped before the update"));
  on_time.begin(4, 0);
  EXPECT_THAT([&] { on_time.add_norm(number(INFINITY)); },
              ThrowsMessage<NonFiniteError>("step 4: the gradient of gradient norm is not finite; "
                                            "stopped before the update"));
  // Gradients that were finite have been used inside the backward pass.
  StepResults released_on_time = results(false, /*releases=*/true);
  released_on_time.begin(4, 0);
  EXPECT_THAT([&] { released_on_time.add_norm(number(INFINITY)); },
              ThrowsMessage<NonFiniteError>(
                  HasSubstr("with release=true may have taken their update: go on from a")));

  StepResults loss = results(true);
  launch(loss, 4, {1, INFINITY}, 1);
  launch(loss, 5, {NAN}, NAN);
  EXPECT_THAT([&] { loss.take(false); },
              ThrowsMessage<NonFiniteError>(
                  "step 4: the loss is inf; neither its update was made nor one after it"));
  StepResults norm = results(true), released = results(true, /*releases=*/true);
  for (StepResults* r : {&norm, &released}) {
    launch(*r, 3, {1}, 1);
    launch(*r, 4, {1}, NAN);
    EXPECT_EQ(r->take(false).size(), 1);
  }
  EXPECT_THAT([&] { norm.take(true); },
              ThrowsMessage<NonFiniteError>("step 4: the gradient is not finite; neither its "
                                            "update was made nor one after it"));
  EXPECT_THAT([&] { released.take(true); },
              ThrowsMessage<NonFiniteError>(HasSubstr("go on from a checkpoint")));
  StepResults unfinished = results(true);
  unfinished.begin(9, 0);
  unfinished.add_loss(number(NAN));
  EXPECT_THAT([&] { unfinished.loss(); }, ThrowsMessage<NonFiniteError>(HasSubstr("step 9")));
}

}  // namespace
}  // namespace compact
