// SPDX-License-Identifier: Apache-2.0
#include "compact/models/llama/llama.h"
#include "compact/base/named.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"
#include "compact/models/config_rows.h"
#include "compact/models/llama/sizes.h"
#include "tests/models/tiny_llama.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using testing::HasSubstr;

TEST(Llama, ChunksOfTheLossChangeRoundingOnly) {
  const Llama whole(shape(), policy("off"), {.max_length = 16});
  const Llama chunked(shape(), policy("exact", "slot loss.logits = chunk:tokens=5"),
                      {.max_length = 16});
  loss_of(whole).backward();
  loss_of(chunked).backward();
  const auto want = whole.parameters(), got = chunked.parameters();
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = (got[i]->weight.grad() - want[i]->weight.grad()).norm().item<double>() /
                         want[i]->weight.grad().norm().item<double>();
    EXPECT_LT(error, 1e-6) << want[i]->name;
  }
}

TEST(Llama, RecomputesWhatThePolicySays) {
  const std::pair<const char*, int64_t> cases[] = {{"off", 0}, {"exact", 3}, {"recompute", 9}};
  for (const auto& [preset, per_block] : cases) {
    const Llama model(shape(), policy(preset), {.max_length = 16});
    PassReport report;
    loss_of(model, 0, &report).backward();
    EXPECT_EQ(*report.rebuilt, kLayers * per_block) << preset;
  }
}

TEST(Llama, MicroBatchesAddUp) {
  const Llama model(shape(), policy("exact"), {.max_length = 16});
  std::vector<std::vector<at::Tensor>> each;
  for (const int64_t step : {0, 1}) {
    loss_of(model, step).backward();
    each.emplace_back();
    for (Parameter* p : model.parameters()) {
      each.back().push_back(p->weight.grad());
      p->weight.mutable_grad() = at::Tensor();
    }
  }
  loss_of(model, 0).backward();
  loss_of(model, 1).backward();
  const auto parameters = model.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(same_bits(parameters[i]->weight.grad(), each[0][i] + each[1][i]))
        << parameters[i]->name;
  }
}

TEST(Llama, CarriersHaveTheProjectedGradientAndChangeNothingElse) {
  const Llama plain(shape(), policy("off"), {.max_length = 16, .seed = 4});
  loss_of(plain).backward();
  for (const char* preset : {"compact", "compact-paper"}) {
    const Llama model(shape(), policy(preset), {.max_length = 16, .seed = 4});
    loss_of(model).backward();
    const auto want = plain.parameters(), got = model.parameters();
    int carriers = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const Carrier* c = got[i]->carrier.get();
      if (!c) {
        EXPECT_TRUE(same_bits(got[i]->weight.grad(), want[i]->weight.grad())) << want[i]->name;
        continue;
      }
      ++carriers;
      int64_t row = 0;
      for (size_t part = 0; part < c->rows.size(); ++part) {
        const at::Tensor full = want[i]->weight.grad().narrow(0, row, c->rows[part]);
        const at::Tensor expected = full.mm(c->projections[part]->matrix());
        const at::Tensor projected = c->value.grad().narrow(0, row, c->rows[part]);
        EXPECT_LT((projected - expected).norm().item<double>(),
                  1e-5 * expected.norm().item<double>())
            << want[i]->name;
        row += c->rows[part];
      }
    }
    EXPECT_EQ(carriers, 3 * kLayers);
  }
}

TEST(Llama, ProjectionsDifferBetweenLayersPartsAndSeeds) {
  const Llama model(shape(), policy("compact-paper"), {.max_length = 16, .seed = 4});
  const Llama other(shape(), policy("compact-paper"), {.max_length = 16, .seed = 5});
  const auto p = [](const Llama& l, int layer, int part) {
    for (const Parameter* q : l.parameters()) {
      if (q->name == cat("layers.", layer, ".attn.qkv"))
        return q->carrier->projections[part]->matrix();
    }
    return at::Tensor();
  };
  EXPECT_TRUE(same_bits(p(model, 0, 0), p(model, 0, 0)));
  EXPECT_FALSE(same_bits(p(model, 0, 0), p(model, 0, 1)));
  EXPECT_FALSE(same_bits(p(model, 0, 0), p(model, 1, 0)));
  EXPECT_FALSE(same_bits(p(model, 0, 0), p(other, 0, 0)));
}

TEST(Llama, WeightsAreNormalAndDependOnSeedAndNameOnly) {
  LlamaConfig c = shape();
  c.initializer_range = 0.02;
  c.vocab_size = 2000;
  const Llama a(c, policy("off"), {.max_length = 16, .seed = 7});
  const Llama b(c, policy("compact"), {.max_length = 8, .seed = 7});
  const Llama other(c, policy("off"), {.max_length = 16, .seed = 8});
  for (size_t i = 0; i < a.parameters().size(); ++i) {
    const Parameter& p = *a.parameters()[i];
    EXPECT_TRUE(same_bits(p.weight, b.parameters()[i]->weight)) << p.name;
    if (p.weight.dim() == 1) {
      EXPECT_TRUE((p.weight == 1).all().item<bool>());
      EXPECT_FALSE(p.decay);
      continue;
    }
    EXPECT_FALSE(same_bits(p.weight, other.parameters()[i]->weight)) << p.name;
    // five standard errors of a standard deviation
    const auto count = static_cast<double>(p.weight.numel());
    EXPECT_NEAR(p.weight.std().item<double>(), 0.02, 5 * 0.02 / std::sqrt(2 * count)) << p.name;
    EXPECT_NEAR(p.weight.mean().item<double>(), 0, 5 * 0.02 / std::sqrt(count)) << p.name;
  }
  EXPECT_FALSE(same_bits(a.embedding().weight, a.head().weight));
}

TEST(Llama, LogitsAreThoseOfTheLoss) {
  const Llama model(shape(), policy("exact"), {.max_length = 16});
  const at::Tensor logits = model.logits(ids());
  EXPECT_FALSE(logits.requires_grad());
  ASSERT_EQ(logits.sizes(), at::IntArrayRef({kBatch, kLength, kWords}));
  const at::Tensor want =
      at::cross_entropy_loss(logits.view({kTokens, kWords}), targets().view(-1));
  EXPECT_NEAR(loss_of(model).item<double>(), want.item<double>(), 1e-6);
}

TEST(Llama, SequencesOfNoTokensCostNothing) {
  for (const char* preset : {"off", "exact", "recompute", "compact"}) {
    const Llama model(shape(), policy(preset), {.max_length = 16});
    const at::Tensor none = at::zeros({2, 0}, at::kLong), loss = model.loss({none}, none, {});
    EXPECT_EQ(loss.item<float>(), 0) << preset;
    loss.backward();
    for (const Parameter* p : model.parameters()) {
      EXPECT_EQ(p->leaf().grad().count_nonzero().item<int64_t>(), 0) << preset << p->name;
    }
  }
}

std::string refusal(const std::string& preset, const std::string& more, LlamaConfig c = shape()) {
  return error_of([&] { Llama(c, policy(preset, more), {.max_length = 16}); });
}

// Where no row has a neighbour, views of queries and keys are contiguous. Causal attention gives
// the first token of a longer sequence what it is alone.
TEST(Llama, SequencesOfOneTokenAreTrainedOn) {
  for (const DecoderKind& kind : decoder_kinds()) {
    for (const char* preset : {"off", "exact", "recompute"}) {
      SCOPED_TRACE(kind.name + " " + preset);
      const Llama model(kind.config, policy(preset), {.max_length = 16});
      std::vector<std::vector<at::Tensor>> gradients;
      std::vector<double> losses;
      for (const int64_t length : {int64_t{1}, kLength}) {
        const at::Tensor words = ids().slice(0, 0, 1).slice(1, 0, length);
        at::Tensor target = at::full({1, length}, -100, at::kLong);
        target.select(1, 0).fill_(7);
        const at::Tensor loss = model.loss({words}, target, {.scale = 1.0});
        losses.push_back(loss.item<double>());
        loss.backward();
        gradients.emplace_back();
        for (Parameter* p : model.parameters()) {
          gradients.back().push_back(p->weight.grad());
          p->weight.mutable_grad() = at::Tensor();
        }
      }
      EXPECT_NEAR(losses[0], losses[1], 1e-5);
      for (size_t i = 0; i < gradients[0].size(); ++i) {
        EXPECT_TRUE(at::allclose(gradients[0][i], gradients[1][i], 1e-4, 1e-6))
            << model.parameters()[i]->name;
      }
    }
  }
}

TEST(Llama, RefusesPoliciesThatCannotBe) {
  EXPECT_EQ(refusal("off", ""), "");
  EXPECT_THAT(refusal("off", "slot layers.*.mlp.gateup = recompute"),
              HasSubstr("did you mean `layers.*.mlp.gate_up`"));
  EXPECT_THAT(refusal("off", "slot layers.9.mlp.gate_up = recompute"),
              HasSubstr("matches no slot"));
  EXPECT_THAT(refusal("off", "grad layers.*.attn.qvk = full"), HasSubstr("layers.*.attn.qkv"));
  EXPECT_THAT(refusal("off", "moment hed = bf16"), HasSubstr("did you mean `head`"));
  EXPECT_THAT(refusal("off", "slot layers.*.attn.norm = sketch"),
              testing::AllOf(HasSubstr("layers.0.attn.norm"), HasSubstr("project")));
  EXPECT_THAT(refusal("compact-paper", "slot layers.1.mlp.silu = sketch"),
              HasSubstr("layers.1.mlp.silu"));
  EXPECT_THAT(refusal("off", "slot final.input = recompute"), HasSubstr("final.input"));
  EXPECT_THAT(refusal("off", "slot final.norm = recompute"), HasSubstr("final.norm"));
  EXPECT_THAT(refusal("off", "slot layers.0.attn.input = recompute"),
              HasSubstr("layers.0.attn.input"));
  EXPECT_THAT(refusal("off", "slot loss.logits = recompute"), HasSubstr("loss.logits"));
  EXPECT_THAT(refusal("off", "slot layers.*.mlp.norm = chunk"), HasSubstr("loss.logits"));
  EXPECT_THAT(refusal("off", "grad head = project"), HasSubstr("`head`"));
  EXPECT_THAT(refusal("off", "grad layers.*.attn.qkv = project:rank=33"), HasSubstr("33"));
}

// The engine's own sum of the two gradients of a matrix that is embedding and head.
TEST(Llama, TiedGradientsAreThoseOfTheEngine) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const char* loss : {"keep", "chunk:tokens=5", "chunk:tokens=64"}) {
      const Policy p = policy("off", std::string("slot loss.logits = ") + loss);
      const Llama tied(shape(true), p, {.dtype = type, .max_length = 16, .seed = 3});
      const Llama apart(shape(false), p, {.dtype = type, .max_length = 16, .seed = 3});
      {
        const at::NoGradGuard no_grad;
        for (const Parameter* to : apart.parameters()) {
          for (const Parameter* from : tied.parameters()) {
            if (from->name == to->name || (from->name == "embedding" && to->name == "head")) {
              to->weight.copy_(from->weight);
            }
          }
        }
      }
      loss_of(apart).backward();
      const at::Tensor want = apart.head().weight.grad() + apart.embedding().weight.grad();
      const at::Tensor loss_value = loss_of(tied);
      loss_value.backward({}, /*retain_graph=*/true);
      const at::Tensor& got = tied.embedding().weight.grad();
      EXPECT_TRUE(same_bits(got, want)) << type << loss;
      loss_value.backward();
      EXPECT_TRUE(same_bits(got, want * 2)) << type << loss;
    }
  }
}

TEST(Llama, RefusesBadInput) {
  const Llama model(shape(), policy("exact"), {.max_length = kLength});
  EXPECT_THROW(model.logits(ids().view(-1)), InputError);
  EXPECT_THROW(model.logits(ids().to(at::kInt)), InputError);
  EXPECT_THROW(model.logits(ids().view({1, kTokens})), InputError);
  EXPECT_THROW(model.logits(ids().add(kWords)), std::exception);
  EXPECT_THROW(model.loss({ids()}, targets().narrow(1, 0, 3), {}), InputError);
  LlamaConfig c = shape();
  c.block.kv_heads = 3;
  EXPECT_NE(refusal("off", "", c), "");
  c = shape();
  c.model_type = "olmo2";  // without its norms
  EXPECT_THAT(refusal("off", "", c), HasSubstr("norms as in another model_type than olmo2"));
}

TEST(Models, TheTableHasTheNumbersOfParametersKnown) {
  const std::pair<const char*, double> known[] = {
      {"llama-60m", 58.1e6},       {"llama-130m", 134.1e6},  {"llama-350m", 368.0e6},
      {"llama-1b", 1339.1e6},      {"llama-7b", 6738.4e6},   {"smollm2-135m", 134.5e6},
      {"qwen2.5-0.5b", 494.03e6},  {"qwen3-0.6b", 596.05e6}, {"llama-3.2-1b", 1235.81e6},
      {"mistral-7b", 7248.02e6},   {"olmo2-1b", 1484.92e6},  {"olmo2-7b", 7298.62e6},
      {"llama-3.1-8b", 8030.26e6}, {"qwen3-8b", 8190.74e6},  {"qwen3-32b", 32762.12e6}};
  for (const auto& [name, parameters] : known) {
    const Llama model(named(llamas(), name, "no model").config, policy("off"),
                      {.device = at::kMeta, .max_length = 8});
    EXPECT_NEAR(static_cast<double>(model.parameter_count()), parameters, 0.05e6) << name;
  }
  for (const LlamaInfo& info : llamas()) {
    EXPECT_NO_THROW(checked(info.config, info.name));
  }
}

}  // namespace
}  // namespace compact
