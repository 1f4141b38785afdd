// SPDX-License-Identifier: Apache-2.0
// Adapters beside weights in NF4 (QLoRA): as beside the decoded weights, planned to the byte.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>

#include "compact/codecs/nf4_weights.h"
#include "tests/parallel/threads.h"
#include "tests/plan/two_steps.h"

namespace compact {
namespace {

enum class Base { kDense, kDecoded, kCodes, kNested };

bool in_codes(Base base) { return base == Base::kCodes || base == Base::kNested; }

// A LLaMA with padded and fused products, and adapters at two of them.
StepRequest adapters_request(const char* policy, at::ScalarType type, Base base,
                             bool nested = false) {
  PlanRequest r = small_request(policy, type, {.batch = 2, .length = 24}, small_shape(3));
  r.shape.block.intermediate = 45;
  StepRequest step = step_request(r);
  step.network = [r, base, nested](at::Device device) {
    NetworkOptions options{.device = device, .dtype = r.dtype, .max_length = r.step.length};
    options.lora = {.rank = 4, .dropout = 0.1, .targets = {"q_proj", "down_proj"}};
    if (in_codes(base)) options.nf4 = Nf4Format{.nested = base == Base::kNested};
    auto network = std::make_unique<Llama>(r.shape, r.policy, options);
    const at::NoGradGuard no_grad;
    if (base == Base::kDecoded) {
      for (auto& [name, tensor] : network->named_tensors()) {
        if (tensor.dim() == 2 && name.find(".layers.") != name.npos) {
          encode_nf4(tensor, nested).decode(tensor);
        }
      }
    }
    return network;
  };
  return step;
}

constexpr const char* kPolicies[] = {"off", "exact", "recompute", "gact-l1"};

TEST(Nf4Plans, AdaptersTrainAsBesideTheDecodedWeights) {
  for (const char* policy : kPolicies) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const TwoSteps dense = two_steps(adapters_request(policy, type, Base::kDense));
      for (const bool nested : {false, true}) {
        const TwoSteps want = two_steps(adapters_request(policy, type, Base::kDecoded, nested));
        const Base codes = nested ? Base::kNested : Base::kCodes;
        expect_same(two_steps(adapters_request(policy, type, codes)), want, policy);
        EXPECT_FALSE(at::equal(dense.losses[1], want.losses[1]));
      }
    }
  }
}

TEST(Nf4Plans, AreMeasuredToTheByte) {
  install_counting_allocator();
  for (const char* policy : kPolicies) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const Base base : {Base::kCodes, Base::kNested}) {
        const StepRequest r = adapters_request(policy, type, base);
        const StepMemory plan = plan_step(r).memory, real = run_for_real(r),
                         dense = plan_step(adapters_request(policy, type, Base::kDense)).memory;
        expect_equal_parts(plan, real, policy);
        EXPECT_TRUE(plan.peak == real.peak || type != at::kFloat) << policy;
        int64_t codes = 0, whole = 0;
        const auto network = r.network(at::kMeta);
        for (const Parameter* p : network->parameters()) {
          if (p->places.empty()) continue;
          whole += static_cast<int64_t>(p->weight.nbytes());
        }
        for (const auto& [name, tensor] : network->named_tensors()) {
          if (!network->nf4()->find(tensor)) continue;
          const int64_t blocks = (tensor.numel() + 63) / 64;
          codes += (tensor.numel() + 1) / 2;
          codes += base == Base::kNested ? blocks + 4 * ((blocks + 255) / 256 + 1) : 4 * blocks;
        }
        EXPECT_EQ(plan.weights, dense.weights - whole + codes) << policy;
        EXPECT_EQ(plan.other, dense.other + 4 * (16 + 256)) << policy;  // the maps
        EXPECT_LT(plan.peak, dense.peak) << policy;
      }
    }
  }
}

// The buffer is that of the largest matrix, however many blocks there are.
TEST(Nf4Plans, OneMatrixIsWholeAtATime) {
  const auto workspace = [](Base base, int64_t layers) {
    PlanRequest r =
        small_request("recompute", at::kFloat, {.batch = 1, .length = 2}, small_shape(layers));
    StepRequest step = step_request(r);
    step.network = [r, base](at::Device device) {
      NetworkOptions options{.device = device, .dtype = r.dtype, .max_length = r.step.length};
      options.lora = {.rank = 1};
      if (in_codes(base)) options.nf4 = Nf4Format();
      return std::make_unique<Llama>(r.shape, r.policy, options);
    };
    const StepMemory m = plan_step(step).memory;
    return m.peak - m.fixed();
  };
  const int64_t few = workspace(Base::kCodes, 2) - workspace(Base::kDense, 2);
  EXPECT_EQ(workspace(Base::kCodes, 6) - workspace(Base::kDense, 6), few);
  const LlamaConfig shape = small_shape(2);
  const int64_t largest = 2 * (shape.block.intermediate + 7) * shape.block.hidden;
  EXPECT_GT(few, 0);
  EXPECT_LE(few, 4 * largest);
}

// Ranks have codes of their own weights, and send them.
TEST(Nf4Plans, CodesAreDealtUnderZero3) {
  for (const bool nested : {false, true}) {
    std::array<TwoSteps, 2> want, got;
    with_shared_ranks(2, [&](const std::shared_ptr<Group>& group) {
      want[static_cast<size_t>(group->rank())] =
          two_steps(adapters_request("exact", at::kFloat, Base::kDecoded, nested), group);
    });
    with_shared_ranks(2, [&](const std::shared_ptr<Group>& group) {
      got[static_cast<size_t>(group->rank())] = two_steps(
          adapters_request("exact", at::kFloat, nested ? Base::kNested : Base::kCodes), group, 3);
    });
    for (const size_t rank : {0, 1}) expect_same(got[rank], want[rank], "rank");
  }
}

}  // namespace
}  // namespace compact
