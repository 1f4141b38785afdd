// SPDX-License-Identifier: Apache-2.0
// Encoders of segments: lossless treatments change no bit, with dropout; padding changes nothing;
// gradients are projected as they should be. tests/models/encoder_parity.py compares with others.
#include "compact/models/encoder/encoder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "tests/models/tiny_encoder.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using ::testing::HasSubstr;

Tensors inputs_of(int64_t batch = 5, int64_t length = 11) {
  const auto g = at::detail::createCPUGenerator(7);
  const at::Tensor lengths = at::randint(1, length + 1, {batch}, g, at::kLong);
  lengths[0] = length;
  return {at::randint(2, 50, {batch, length}, g, at::kLong),
          at::randint(0, 2, {batch, length}, g, at::kLong), lengths};
}

struct Step {
  at::Tensor loss;
  std::map<std::string, at::Tensor> gradients;
};

Step step_under(const EncoderConfig& config, const Policy& policy) {
  const Encoder net(config, policy, {.seed = 3});
  Step s;
  const at::Tensor loss =
      net.loss(inputs_of(), at::arange(5).remainder(3), {.scale = 0.2, .noise = 5});
  loss.backward();
  s.loss = loss.detach();
  for (Parameter* p : net.parameters()) s.gradients[p->name] = p->leaf().grad().clone();
  return s;
}
Step step_under(const EncoderConfig& config, const std::string& policy) {
  return step_under(config, Policy::parse(policy, "test"));
}

void expect_same(const Step& a, const Step& b, const std::string& text) {
  EXPECT_TRUE(a.loss.equal(b.loss)) << text;
  for (const auto& [name, g] : b.gradients) {
    EXPECT_TRUE(a.gradients.at(name).equal(g)) << name << " under " << text;
  }
}

TEST(Encoder, IsEvaluatedInInferenceMode) {
  const Encoder net(tiny_encoder(), Policy::preset("exact"), {.seed = 3});
  const at::Tensor target = at::arange(5).remainder(3);
  const double want = net.score(inputs_of(), target).loss;
  const c10::InferenceMode inference;
  const Tensors inputs = inputs_of();
  ASSERT_TRUE(inputs[2].is_inference());
  EXPECT_EQ(net.score(inputs, target).loss, want);
}

TEST(Encoder, LosslessPresetsChangeNoBit) {
  for (const EncoderKind kind : {EncoderKind::kBert, EncoderKind::kRoberta}) {
    const Step off = step_under(tiny_encoder(kind), Policy::preset("off"));
    for (const char* preset : {"exact", "recompute"}) {
      expect_same(step_under(tiny_encoder(kind), Policy::preset(preset)), off, preset);
    }
  }
}

// In RoBERTa a padding token within a text takes no place: what follows it lies where it would lie
// without it. Neither its word nor its place is trained.
TEST(Encoder, PaddingWithinATextTakesNoPlaceInRoberta) {
  for (const EncoderKind kind : {EncoderKind::kBert, EncoderKind::kRoberta}) {
    const EncoderConfig config = tiny_encoder(kind);
    const Encoder net(config, Policy(), {.seed = 3});
    const auto embedded = [&](const std::vector<int64_t>& ids) {
      const at::Tensor row = at::tensor(ids, at::kLong).unsqueeze(0);
      at::Tensor x;
      const auto see = [&](const Segment& s, const at::Tensor& input, Weights, const SegmentPass&) {
        if (&s == net.segments()[0]) x = input.detach().squeeze(0).clone();
      };
      net.each_segment({row, at::zeros_like(row), at::full({1}, row.size(1), at::kLong)},
                       at::zeros({1}, at::kLong), {.training = false}, see);
      return x;
    };
    const int64_t pad = config.pad_token_id;
    const at::Tensor plain = embedded({5, 6, 7, 8}), with = embedded({5, pad, pad, 6, 7, 8});
    const bool roberta = kind == EncoderKind::kRoberta;
    EXPECT_TRUE(with[0].equal(plain[0]));
    EXPECT_EQ(with.slice(0, 3).equal(plain.slice(0, 1)), roberta);
    EXPECT_EQ(with[1].equal(with[2]), roberta);

    const at::Tensor row = at::tensor({5, int(pad), 6, 7}, at::kLong).unsqueeze(0);
    net.loss({row, at::zeros_like(row), at::full({1}, 4, at::kLong)}, at::zeros({1}, at::kLong), {})
        .backward();
    std::map<std::string, at::Tensor> gradients;
    for (Parameter* p : net.parameters()) gradients[p->name] = p->leaf().grad();
    EXPECT_TRUE(gradients["embedding"][pad].eq(0).all().item<bool>());
    EXPECT_TRUE(gradients["embedding"][6].ne(0).any().item<bool>());
    EXPECT_EQ(gradients["positions"][1].eq(0).all().item<bool>(), roberta);
    EXPECT_TRUE(gradients["positions"][2].ne(0).any().item<bool>());
  }
}

TEST(Encoder, EveryAssignmentOfABlockChangesNoBit) {
  EncoderConfig config = tiny_encoder();
  config.num_hidden_layers = 2;
  const Step off = step_under(config, "");
  const char* const slots[] = {"attn.norm", "attn.qkv", "attn.out", "mlp.input",
                               "mlp.norm",  "mlp.up",   "mlp.gelu"};
  std::mt19937 random(1);
  for (int first = 0; first < 128; ++first) {
    std::string policy;
    const int second = static_cast<int>(random() % 128);
    for (int i = 0; i < 7; ++i) {
      if (first >> i & 1) policy += cat("slot layers.0.", slots[i], " = recompute\n");
      if (second >> i & 1) policy += cat("slot layers.1.", slots[i], " = recompute\n");
    }
    expect_same(step_under(config, policy), off, policy);
  }
}

TEST(Encoder, DropoutIsOfTrainingAndOfTheKeyAlone) {
  const Encoder net(tiny_encoder(), Policy::preset("exact"), {.seed = 3});
  const at::Tensor target = at::arange(5).remainder(3);
  const auto loss = [&](uint64_t key) {
    return net.loss(inputs_of(), target, {.noise = key}).item<double>();
  };
  EXPECT_EQ(loss(1), loss(1));
  EXPECT_NE(loss(1), loss(2));
  const double plain = net.score(inputs_of(), target).loss;
  EXPECT_EQ(net.score(inputs_of(), target).loss, plain);
  EXPECT_NE(loss(1), plain);
  EncoderConfig none = tiny_encoder();
  none.hidden_dropout = none.attention_dropout = 0;
  const Encoder without(none, Policy::preset("exact"), {.seed = 3});
  // Other kernels, for some processors, where nothing is drawn: equal but for rounding.
  EXPECT_NEAR(without.loss(inputs_of(), target, {}).item<double>(), plain, 1e-5);
}

TEST(Encoder, PaddingChangesNothing) {
  const Encoder net(tiny_encoder(), Policy::preset("exact"), {.seed = 3});
  const Tensors in = inputs_of();
  const at::NoGradGuard no_grad;
  const at::Tensor want = net.logits(in, {.training = false});
  const auto longer = [](const at::Tensor& t, int64_t fill) {
    return at::cat({t, at::full({t.size(0), 9}, fill, at::kLong)}, 1);
  };
  const at::Tensor got =
      net.logits({longer(in[0], 49), longer(in[1], 1), in[2]}, {.training = false});
  EXPECT_LT((got - want).abs().max().item<double>(), 1e-5);
  for (int64_t i = 0; i < in[0].size(0); ++i) {
    const int64_t length = in[2][i].item<int64_t>();
    const auto row = [&](const at::Tensor& t) { return t.narrow(0, i, 1).narrow(1, 0, length); };
    const at::Tensor alone =
        net.logits({row(in[0]), row(in[1]), in[2].narrow(0, i, 1)}, {.training = false});
    EXPECT_LT((alone - want.narrow(0, i, 1)).abs().max().item<double>(), 1e-5) << length;
  }
}

// The gradient of a carrier is that of the whole weight times P, whether the input is kept, rebuilt
// or sketched.
TEST(Encoder, ProjectedGradientsAreThoseOfTheWeights) {
  const Step whole = step_under(tiny_encoder(), "");
  for (const char* preset : {"compact", "compact-paper"}) {
    Policy policy = Policy::preset(preset);
    policy.override_projection("rank", "8");
    const Encoder net(tiny_encoder(), policy, {.seed = 3});
    net.loss(inputs_of(), at::arange(5).remainder(3), {.scale = 0.2, .noise = 5}).backward();
    int projected = 0;
    for (const Parameter* p : net.parameters()) {
      const at::Tensor& want = whole.gradients.at(p->name);
      if (!p->carrier) {
        EXPECT_TRUE(p->weight.grad().equal(want)) << p->name;
        continue;
      }
      ++projected;
      int64_t row = 0;
      for (size_t i = 0; i < p->carrier->rows.size(); ++i) {
        const int64_t rows = p->carrier->rows[i];
        const at::Tensor g = want.narrow(0, row, rows), z = p->carrier->projections[i]->apply(g),
                         got = p->leaf().grad().narrow(0, row, rows);
        EXPECT_LT(((got - z).norm() / z.norm()).item<double>(), 1e-5) << p->name;
        row += rows;
      }
    }
    EXPECT_EQ(projected, 3 * tiny_encoder().num_hidden_layers) << preset;
  }
}

TEST(Encoder, RegressionIsSquaredError) {
  EncoderConfig config = tiny_encoder();
  config.labels = {"value"};
  config.regression = true;
  const Encoder net(config, Policy::preset("exact"), {.seed = 3});
  const at::Tensor target = at::randn({5});
  const Score score = net.score(inputs_of(), target);
  at::NoGradGuard no_grad;
  const at::Tensor y = net.logits(inputs_of(), {.training = false}).select(1, 0);
  EXPECT_NEAR(score.loss, (y - target).square().sum().item<double>(), 1e-5);
  EXPECT_TRUE(score.predicted.equal(y));
  EXPECT_EQ(score.correct, -1);
}

TEST(Encoder, QuantizedPresetsAreCloseAndSmall) {
  const auto saved = [](const char* preset) {
    const Encoder net(tiny_encoder(), Policy::preset(preset), {.seed = 3});
    PassReport report;
    net.loss(inputs_of(), at::arange(5).remainder(3), {.scale = 0.2, .noise = 5}, &report);
    return report.all_saved_bytes();
  };
  EXPECT_LT(saved("exact"), saved("off"));
  EXPECT_LT(saved("gact-l1"), saved("exact") / 3);
  const Step off = step_under(tiny_encoder(), ""),
             near = step_under(tiny_encoder(), Policy::preset("gact-l1.1"));
  EXPECT_TRUE(near.loss.equal(off.loss));
  for (const auto& [name, g] : off.gradients) {
    const double size = g.norm().item<double>();
    if (size < 1e-5) continue;
    EXPECT_LT((near.gradients.at(name) - g).norm().item<double>(), 0.1 * size) << name;
  }
}

TEST(Encoder, RefusesWhatItCannotTake) {
  const Encoder net(tiny_encoder(), Policy::preset("exact"), {});
  const Tensors in = inputs_of(2, 33);
  EXPECT_THAT(error_of([&] { net.logits(in, {.training = false}); }),
              HasSubstr("longer than the model's 32"));
  EXPECT_THAT(error_of([&] { net.logits({in[0]}, {.training = false}); }), HasSubstr("lengths"));
  const auto make = [&](const std::string& policy) {
    return error_of([&] { Encoder(tiny_encoder(), Policy::parse(policy, "test"), {}); });
  };
  EXPECT_THAT(make("grad pooler = project\n"), HasSubstr("transformer blocks"));
  EXPECT_THAT(make("slot layers.0.attn.input = recompute\n"), HasSubstr("attn.input"));
  EXPECT_THAT(make("slot layers.*.mlp.up = sketch\n"), HasSubstr("sketch"));
  EncoderConfig bad = tiny_encoder();
  bad.num_attention_heads = 5;
  EXPECT_THAT(error_of([&] { Encoder(bad, Policy::preset("off"), {}); }), HasSubstr("multiple"));
}

}  // namespace
}  // namespace compact
