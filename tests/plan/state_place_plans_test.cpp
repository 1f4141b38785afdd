// SPDX-License-Identifier: Apache-2.0
// An optimizer's state outside of the device takes none of its memory, in plans and in steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "tests/optim/toy.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// AdamW whose moments have no room in memory.
TEST(StatePlaces, FilesTakeNoMemory) {
  install_counting_allocator();
  constexpr int64_t kRows = 1024, kBytes = kRows * kRows * 4;
  at::Tensor weights[2];
  for (const bool disk : {false, true}) {
    Parameter p{.name = "p", .weight = normal({kRows, kRows}, 1)};
    p.weight.mutable_grad() = normal({kRows, kRows}, 2);
    const OptimizerOptions options{
        .moment = [&](const Parameter&) { return disk ? "f32+disk" : "f32"; },
        .offload_folder = "."};
    const int64_t before = live_bytes(at::kCPU);
    if (disk) limit_cpu_bytes(before + kBytes);  // half of what the moments take
    {
      Optimizer optimizer({&p}, options);
      using Bytes = std::map<std::string, int64_t>;
      EXPECT_EQ(optimizer.bytes(), disk ? (Bytes{{"outside", 2 * kBytes}})
                                        : (Bytes{{"moment", kBytes}, {"second_moment", kBytes}}));
      EXPECT_EQ(live_bytes(at::kCPU) - before, disk ? 0 : 2 * kBytes);
      reset_peak(at::kCPU);
      optimizer.step(0.01);
      EXPECT_LE(peak_bytes(at::kCPU) - before, disk ? 0 : 2 * kBytes);
    }
    limit_cpu_bytes({});
    weights[disk] = p.weight;
  }
  EXPECT_TRUE(at::equal(weights[0], weights[1]));
}

// A plan counts host memory beside a GPU, and on a CPU, which has no other memory, nothing else.
TEST(StatePlaces, PlansCountOffloadedState) {
  install_counting_allocator();
  for (const c10::DeviceType device : {c10::kCPU, c10::kCUDA}) {
    set_meta_device(device);
    Parameter p{.name = "p", .weight = at::zeros({64, 32}, at::kMeta)};
    const int64_t before = live_bytes(at::kMeta);
    const Optimizer optimizer({&p}, {.moment = [](const Parameter&) { return "bf16+offload"; }});
    const int64_t bytes = 2 * 64 * 32 * 2;
    EXPECT_EQ(live_bytes(at::kMeta) - before, device == c10::kCPU ? bytes : 0);
    EXPECT_EQ(optimizer.bytes().contains("outside"), device == c10::kCUDA);
  }
  Parameter p{.name = "p", .weight = at::zeros({64, 32}, at::kMeta)};
  EXPECT_THAT([&] { Optimizer({&p}, {.moment = [](const Parameter&) { return "f32+disk"; }}); },
              ThrowsMessage<InputError>(HasSubstr("`disk` is for a CPU")));
  set_meta_device(c10::kCPU);
}

// For every optimizer and type, with masters, projections and updates inside the backward pass.
TEST(StatePlaces, PlansEqualARealStep) {
  for (const OptimizerInfo* kind : optimizers()) {
    for (const char* policy : {"moment * = f32", "moment * = f8",
                               "moment * = bf16\ngrad layers.*.attn.qkv = project:rank=8\n",
                               "grad * = full:release=true\nmoment * = f32"}) {
      for (const bool bf16 : {false, true}) {
        StepMemory plans[2];
        for (const bool disk : {false, true}) {
          std::string text = policy;
          if (disk)
            text.insert(text.find('\n', text.find("moment")) == text.npos
                            ? text.size()
                            : text.find('\n', text.find("moment")),
                        "+disk");
          PlanRequest r =
              small_request(text, bf16 ? at::kBFloat16 : at::kFloat,
                            {.batch = 2, .length = 24, .clip = false}, small_shape(), *kind);
          const auto optimizer = r.optimizer;
          r.optimizer = [=](const Policy& p) {
            OptimizerOptions o = optimizer(p);
            o.master_weights = bf16;
            return o;
          };
          plans[disk] = plan_step(r).memory;
          const StepMemory real = run_for_real(r);
          SCOPED_TRACE(cat(kind->name, " ", text, bf16 ? " bf16" : ""));
          EXPECT_EQ(plans[disk].optimizer, real.optimizer);
          EXPECT_EQ(plans[disk].outside, real.outside);
          EXPECT_LE(std::abs(plans[disk].peak - real.peak), bf16 ? real.peak / 100 : 0);
        }
        EXPECT_EQ(plans[1].optimizer, 0);
        EXPECT_EQ(plans[1].outside, plans[0].optimizer);
        EXPECT_EQ(plans[0].peak - plans[1].peak, plans[0].optimizer);
      }
    }
  }
}

// Where nothing exact fits with moments in memory, they go before anything is lost, and then the
// weights.
TEST(StatePlaces, ABudgetMovesThemBeforeItLosesAnything) {
  const PlanRequest r = small_request("off", at::kFloat, {.batch = 4, .length = 32}, small_shape());
  const Speed speed = stated_speed(r, 1e11, 1e10);
  const int64_t exact = planner_of(r, {}, speed).least_peak();
  BudgetSearch search = planner_of(r, {.quantize = true, .disk = true}, speed);
  EXPECT_EQ(search.choose(exact).policy.moment("any"), "");
  const Chosen moved = search.choose(exact - 1);
  EXPECT_EQ(moved.policy.moment("any"), "f32+disk");
  EXPECT_TRUE(moved.lossless);
  PlanRequest real = r;
  real.policy = moved.policy;
  EXPECT_LE(run_for_real(real).peak, exact - 1);
  EXPECT_EQ(moved.policy.weight("layers.0.attn.qkv"), MemoryPlace::kDevice);
  const int64_t least = planner_of(r, {.disk = true}, speed).least_peak();
  const Chosen all = search.choose(least);
  real.policy = all.policy;
  EXPECT_EQ(all.policy.moment("any"), "f32+disk");
  EXPECT_EQ(all.policy.weight("layers.0.attn.qkv"), MemoryPlace::kDisk);
  EXPECT_TRUE(all.lossless);
  EXPECT_LE(run_for_real(real).peak, least);
  const Chosen rounded = search.choose(least - 1);
  EXPECT_EQ(rounded.policy.moment("any"), "f32+disk");
  EXPECT_EQ(rounded.policy.weight("layers.0.attn.qkv"), MemoryPlace::kDisk);
  EXPECT_FALSE(rounded.lossless);
  EXPECT_THAT([&] { planner_of(r, {.offload = true}, speed); },
              ThrowsMessage<InputError>(HasSubstr("--allow disk")));
  EXPECT_EQ(Allowed::parse("disk,quantize").str(), "quantize,disk");
  // Neither the weights of ranks that have a part of them each.
  BudgetSearch dealt = planner_of(
      [&](const Policy& p) {
        StepRequest step = step_request(with_policy(r, p));
        step.optimizer.group = planned_group(0, 2);
        step.optimizer.zero = 3;
        return step;
      },
      {.disk = true}, speed);
  const Chosen of_ranks = dealt.choose(dealt.least_peak());
  EXPECT_EQ(of_ranks.policy.moment("any"), "f32+disk");
  EXPECT_EQ(of_ranks.policy.weight("layers.0.attn.qkv"), MemoryPlace::kDevice);
}

}  // namespace
}  // namespace compact
