// SPDX-License-Identifier: Apache-2.0
// Parameters that are updated, and their gradients freed, inside the backward pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "compact/base/check.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

using testing::HasSubstr;

const std::string kRelease = "grad * = full:release=true\n";
std::string projected(const char* more) {
  return std::string("grad layers.*.{attn.qkv,mlp.down} = project:rank=0.25,period=3") + more +
         "\n";
}

struct Trained {
  std::vector<at::Tensor> weights;
  std::vector<float> norms;
};
Trained train(const std::string& policy, at::ScalarType type, const OptimizerInfo& kind,
              bool tied) {
  LlamaConfig shape = small_shape();
  shape.tie_word_embeddings = tied;
  const PlanRequest r = small_request(policy, type, {}, shape, kind);
  const Llama model(shape, r.policy, {.dtype = type, .max_length = 16, .seed = 5});
  Optimizer optimizer(model.parameters(), r.optimizer(r.policy));
  const at::Tensor ids = at::arange(32, at::kLong).mul_(7).remainder_(512).view({2, 16});
  Trained result;
  for (int step = 0; step < 7; ++step) {
    optimizer.begin_backward(1e-2);
    torch::autograd::backward({model.loss({ids}, ids.roll(-1, 1), {.scale = 1.0 / 32})}, {});
    result.norms.push_back(optimizer.gradient_norm().item<float>());
    optimizer.step(1e-2);
  }
  for (const Parameter* p : model.parameters()) result.weights.push_back(p->weight.detach());
  return result;
}

class ReleaseOf : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(EveryOptimizer, ReleaseOf, testing::ValuesIn(names_of(optimizers())),
                         [](const auto& info) { return info.param; });

TEST_P(ReleaseOf, GivesTheSameBits) {
  const OptimizerInfo& kind = optimizer_named(GetParam());
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool project : {false, true}) {
      for (const bool tied : {false, true}) {
        const Trained want =
            train("grad * = full\n" + (project ? projected("") : ""), type, kind, tied);
        const Trained got =
            train(kRelease + (project ? projected(",release=true") : ""), type, kind, tied);
        ASSERT_EQ(got.weights.size(), want.weights.size());
        for (size_t i = 0; i < want.weights.size(); ++i) {
          EXPECT_TRUE(at::equal(got.weights[i], want.weights[i]))
              << i << " " << type << project << tied;
        }
        for (size_t i = 0; i < want.norms.size(); ++i) {
          EXPECT_NEAR(got.norms[i], want.norms[i], 1e-5 * want.norms[i]);
        }
      }
    }
  }
}

TEST(Release, GradientsNeverLiveTogether) {
  install_counting_allocator();
  const TestStep step{.batch = 1, .length = 16, .clip = false};
  const PlanRequest kept = small_request("exact", at::kFloat, step, small_shape(4));
  PlanRequest released = kept;
  released.policy.append(Policy::parse(kRelease, "test"));
  const StepMemory a = plan_step(kept).memory, b = plan_step(released).memory;
  EXPECT_LT(b.peak, a.peak - a.gradients / 3);
  EXPECT_EQ(run_for_real(released).peak, b.peak);
}

// Whether that is seen at once, or on the device by a guard.
TEST(Release, LeavesWhatIsNotFinite) {
  const PlanRequest r = small_request(kRelease, at::kFloat, {}, small_shape());
  const Llama model(r.shape, r.policy, {.max_length = 16});
  Optimizer optimizer(model.parameters(), r.optimizer(r.policy));
  for (const Parameter* p : model.parameters()) {
    if (p->name == "final.norm") p->weight.detach().select(0, 3).fill_(INFINITY);
  }
  std::vector<at::Tensor> before;
  for (const Parameter* p : model.parameters()) before.push_back(p->weight.detach().clone());
  const at::Tensor ids = at::ones({1, 16}, at::kLong), guard = at::zeros({});
  for (const bool guarded : {false, true}) {
    optimizer.begin_backward(1e-2, guarded ? guard : at::Tensor());
    torch::autograd::backward({model.loss({ids}, ids, {})}, {});
    EXPECT_EQ(guard.isnan().item<bool>(), guarded);
    EXPECT_FALSE(std::isfinite(optimizer.gradient_norm().item<float>()));
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(at::equal(model.parameters()[i]->weight, before[i])) << i;
    }
    optimizer.clear_gradients();
  }
}

// The storage of a carrier's zeros does not change the numbers.
TEST(Release, DenseCarriersChangeNoBit) {
  for (const OptimizerInfo* kind : optimizers()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const Trained want = train(projected(""), type, *kind, false),
                    got = train(projected(",dense=true"), type, *kind, false);
      EXPECT_EQ(got.norms, want.norms) << kind->name;
      for (size_t i = 0; i < want.weights.size(); ++i) {
        EXPECT_TRUE(at::equal(got.weights[i], want.weights[i])) << kind->name << " " << i;
      }
    }
  }
}

TEST(Release, RefusesWhatNeedsAllGradients) {
  const PlanRequest r = small_request(kRelease, at::kFloat, {}, small_shape());
  const Llama model(r.shape, r.policy, {.max_length = 16});
  Optimizer optimizer(model.parameters(), r.optimizer(r.policy));
  const at::Tensor ids = at::ones({1, 16}, at::kLong);
  const auto backward = [&] { torch::autograd::backward({model.loss({ids}, ids, {})}, {}); };
  optimizer.begin_backward(1e-2);
  backward();
  EXPECT_THROW(optimizer.step(1e-2, at::ones({})), InputError);
  EXPECT_THROW(optimizer.step(2e-2), InputError);
  EXPECT_THROW(optimizer.begin_backward(1e-2), InputError);
  optimizer.step(1e-2);
  backward();  // not announced: gradients stay
  EXPECT_THROW(optimizer.begin_backward(1e-2), InputError);
  EXPECT_THROW(optimizer.step(1e-2), InputError);
  optimizer.clear_gradients();
  optimizer.begin_backward(1e-2);
  backward();
  optimizer.step(1e-2);
}

}  // namespace
}  // namespace compact
