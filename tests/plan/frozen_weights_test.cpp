// SPDX-License-Identifier: Apache-2.0
// Parameters that a policy freezes: they stay as they are, the others train as they would, and
// plans count what is not held and not made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

#include "compact/base/check.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const std::string kMatrices = "grad layers.*.{attn.qkv,attn.out,mlp.gate_up,mlp.down} = frozen\n";
const std::string kFrozen[] = {
    "grad embedding = frozen\n",
    "grad {embedding,layers.0.*} = frozen\n",  // no gradient comes to the first block
    kMatrices,
    "grad {embedding,*norm} = frozen\n",
    "grad * = frozen\ngrad layers.1.attn.out = full\n",
};
const char* const kPolicies[] = {"off", "exact", "recompute", "compact",
                                 "slot loss.logits = chunk:tokens=7\n"};

// A policy or preset with lines above it.
PlanRequest with_lines(PlanRequest r, const std::string& lines) {
  r.policy.append(Policy::parse(lines, "test"));
  return r;
}

struct Stepped {
  std::map<std::string, at::Tensor> before, gradients, first, last;  // weights after steps
};
Stepped stepped(const PlanRequest& r) {
  const Llama model(r.shape, r.policy, {.dtype = r.dtype, .max_length = 16, .seed = 5});
  Optimizer optimizer(model.trained(), r.optimizer(r.policy));
  const at::Tensor ids = at::arange(32, at::kLong).mul_(7).remainder_(512).view({2, 16});
  Stepped result;
  const auto weights = [&](std::map<std::string, at::Tensor>& to) {
    for (const Parameter* p : model.parameters()) to[p->name] = p->weight.detach().clone();
  };
  weights(result.before);
  for (int step = 0; step < 3; ++step) {
    optimizer.begin_backward(1e-2);
    torch::autograd::backward({model.loss({ids}, ids.roll(-1, 1), {.scale = 1.0 / 32})}, {});
    for (const Parameter* p : model.parameters()) {
      if (step == 0) result.gradients[p->name] = p->leaf().grad();
    }
    optimizer.step(1e-2);
    if (step == 0) weights(result.first);
  }
  weights(result.last);
  return result;
}

TEST(FrozenWeights, StayAndTheOthersTrainAsTheyWould) {
  for (const char* policy : kPolicies) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const bool tied : {false, true}) {
        LlamaConfig shape = small_shape();
        shape.tie_word_embeddings = tied;
        const PlanRequest r = small_request(policy, type, {}, shape);
        const Stepped all = stepped(r);
        for (const std::string& lines : kFrozen) {
          const PlanRequest some = with_lines(r, lines);
          const Stepped got = stepped(some);
          int trained = 0, frozen = 0;
          for (const auto& [name, before] : got.before) {
            SCOPED_TRACE(cat(policy, " ", type, " ", tied, " ", lines, name));
            if (some.policy.grad(name).name == "frozen") {
              ++frozen;
              EXPECT_FALSE(got.gradients.at(name).defined());
              EXPECT_TRUE(at::equal(got.last.at(name), before));
              continue;
            }
            ++trained;
            EXPECT_TRUE(at::equal(got.gradients.at(name), all.gradients.at(name)));
            EXPECT_TRUE(at::equal(got.first.at(name), all.first.at(name)));
            EXPECT_FALSE(at::equal(got.last.at(name), before));
          }
          EXPECT_TRUE(trained > 0 && frozen > 0) << lines;
        }
      }
    }
  }
}

TEST(FrozenWeights, ArePlannedToTheByte) {
  install_counting_allocator();
  size_t round = 0;
  for (const char* policy : kPolicies) {
    for (const std::string& lines : kFrozen) {
      for (const bool tied : {false, true}) {
        LlamaConfig shape = small_shape();
        shape.tie_word_embeddings = tied;
        const OptimizerInfo& kind = *optimizers()[round++ % optimizers().size()];
        const TestStep step{.batch = 2,
                            .length = 24,
                            .accumulation = 1 + static_cast<int64_t>(round % 2),
                            .clip = round % 3 == 0};
        const PlanRequest r = small_request(policy, at::kFloat, step, shape, kind);
        const PlanRequest some = with_lines(r, lines);
        const StepMemory full = plan_step(r).memory, plan = plan_step(some).memory,
                         real = run_for_real(some);
        const std::string text = cat(policy, " ", lines, kind.name, " ", tied);
        expect_equal_parts(plan, real, text);
        // Muon's own temporaries are planned to 2 %, with frozen parameters and without.
        EXPECT_LE(std::abs(plan.peak - real.peak), kind.name == "muon" ? plan.peak / 50 : 0)
            << text;
        EXPECT_EQ(plan.weights, full.weights) << text;
        EXPECT_LT(plan.gradients, full.gradients) << text;
        EXPECT_LT(plan.peak, full.peak) << text;
      }
    }
  }
}

// Without gradients of matrices nothing reads what they multiply.
TEST(FrozenWeights, InputsOfFrozenProductsAreNotHeld) {
  install_counting_allocator();
  const TestStep step{.batch = 2, .length = 24};
  LlamaConfig shape = small_shape();
  shape.block.intermediate = 192;
  const int64_t tokens = step.batch * step.length, n = shape.block.hidden,
                m = shape.block.intermediate, layers = shape.num_hidden_layers;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto size = static_cast<int64_t>(c10::elementSize(type));
    for (const char* policy : {"off", "exact"}) {
      const PlanRequest r = small_request(policy, type, step, shape);
      const PlanRequest some = with_lines(r, kMatrices);
      const StepMemory full = plan_step(r).memory, plan = plan_step(some).memory;
      std::map<std::string, int64_t> before;
      int64_t fewer = 0;
      for (const SlotBytes& s : full.slots) before[s.name] = s.stored;
      for (const SlotBytes& s : plan.slots) {
        const bool only_multiplied = s.name.ends_with(".norm") || s.name.ends_with(".product");
        const bool held = before.at(s.name) > 0 && (s.name == "final.norm" || !only_multiplied);
        EXPECT_EQ(s.stored, held ? before.at(s.name) : 0) << policy << " " << s.name;
        fewer += before.at(s.name) - s.stored;
      }
      // `exact` rebuilds norms and products, which is not done then.
      const bool off = std::string(policy) == "off";
      EXPECT_EQ(fewer, off ? layers * tokens * (2 * n + m) * size : 0) << policy;
      EXPECT_EQ(run_for_real(some).saved, plan.saved) << policy;
    }
  }
  for (const bool frozen : {false, true}) {
    const PlanRequest r = with_lines(small_request("exact", at::kFloat, step, small_shape()),
                                     frozen ? kMatrices : "");
    const Llama model(r.shape, r.policy, {.max_length = step.length});
    PassReport report;
    const at::Tensor ids = at::ones({2, 24}, at::kLong);
    torch::autograd::backward({model.loss({ids}, ids, {}, &report)}, {});
    EXPECT_EQ(*report.rebuilt, frozen ? 0 : 3 * layers);
  }
}

TEST(FrozenWeights, AreRefusedWhereTheyCannotBe) {
  const auto model = [](const std::string& lines, bool tied = false, const char* preset = "off") {
    LlamaConfig shape = small_shape();
    shape.tie_word_embeddings = tied;
    const PlanRequest r = with_lines(small_request(preset, at::kFloat, {}, shape), lines);
    return std::make_unique<Llama>(shape, r.policy, NetworkOptions{.max_length = 16});
  };
  const auto refused = [&](const std::string& words, auto... what) {
    EXPECT_THAT([&] { model(what...); }, ThrowsMessage<InputError>(HasSubstr(words)));
  };
  refused("`grad ... = frozen` of every parameter leaves nothing to train", "grad * = frozen\n");
  refused("pattern `head` matches no grad", "grad head = frozen\n", true);  // it is the embedding
  refused("given `frozen` here and `project` at test:1",
          "grad layers.*.attn.qkv = project\ngrad layers.*.attn.qkv = frozen\n");
  refused("`lr_scale`", "grad head = frozen:lr_scale=2\n");
  refused("slot `layers.0.attn.norm` = sketch", "grad layers.0.attn.qkv = frozen\n", false,
          "compact-paper");
  EXPECT_EQ(model("grad embedding = frozen\n", true)->trained().size(),
            model("", true)->parameters().size() - 1);
  // Later lines of a policy override earlier ones.
  const auto above = model("grad layers.0.attn.qkv = frozen\n", false, "compact");
  for (const Parameter* p : above->parameters()) {
    const bool is_frozen = p->name == "layers.0.attn.qkv";
    EXPECT_EQ(p->trained, !is_frozen) << p->name;
    EXPECT_EQ(p->carrier != nullptr, p->hidden && !is_frozen && !p->name.ends_with("attn.out"))
        << p->name;
  }
  EXPECT_THAT([&] { Optimizer(above->parameters(), {}); },
              ThrowsMessage<InputError>(HasSubstr("`layers.0.attn.qkv` is frozen")));
}

}  // namespace
}  // namespace compact
