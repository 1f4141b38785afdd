// SPDX-License-Identifier: Apache-2.0
// The promises of an optimizer beside its mathematics: norms, finding what is not finite, rates,
// bytes, errors.
#include "compact/optim/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "compact/base/check.h"
#include "compact/optim/update.h"
#include "tests/optim/toy.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Optimizer, NormIsThatOfAllLeaves) {
  Toy toy({.projection = "srht"});
  Optimizer optimizer(toy.pointers(), {});
  EXPECT_EQ(optimizer.gradient_norm().item<float>(), 0);
  toy.accumulate(0);
  double sum = 0;
  for (const Parameter& p : toy.parameters) {
    sum += p.leaf().grad().to(at::kDouble).square().sum().item<double>();
  }
  EXPECT_EQ(toy.parameters[0].leaf().grad().sizes(), at::IntArrayRef({Toy::kHidden, Toy::kRank}));
  const at::Tensor norm = optimizer.gradient_norm();
  EXPECT_NEAR(norm.item<float>(), std::sqrt(sum), 1e-6 * std::sqrt(sum));
  EXPECT_EQ(Optimizer::clip_factor(norm, 1e6).item<float>(), 1);
  EXPECT_NEAR(Optimizer::clip_factor(norm, 0.01).item<float>(), 0.01 / std::sqrt(sum), 1e-6);
  EXPECT_THROW(Optimizer::clip_factor(norm, 0), InputError);
}

// bf16 gradients are summed in f32: in bf16 the sum would stop growing at 256.
TEST(Optimizer, NormOfBf16IsSummedInF32) {
  Parameter p{.name = "w", .weight = at::zeros({300, 300}, at::kBFloat16)};
  Optimizer optimizer({&p}, {});
  p.weight.mutable_grad() = at::ones({300, 300}, at::kBFloat16);
  EXPECT_EQ(optimizer.gradient_norm().scalar_type(), at::kFloat);
  EXPECT_NEAR(optimizer.gradient_norm().item<float>(), 300, 1e-3);
}

TEST(Optimizer, NamesWhatIsNotFinite) {
  for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
    Toy toy({.projection = "gaussian"});
    Optimizer optimizer(toy.pointers(), {});
    toy.accumulate(0);
    EXPECT_EQ(optimizer.nonfinite(optimizer.gradient_norm()), "");
    toy.parameters[0].leaf().mutable_grad()[1][1] = bad;
    EXPECT_EQ(optimizer.nonfinite(optimizer.gradient_norm()), "a");
    toy.parameters[2].weight.mutable_grad()[3] = bad;  // it was there before, on the way to `a`
    EXPECT_EQ(optimizer.nonfinite(optimizer.gradient_norm()), "g");
  }
  Parameter p{.name = "w", .weight = at::zeros({4})};
  Optimizer optimizer({&p}, {});
  p.weight.mutable_grad() = at::full({4}, 3e38);
  EXPECT_EQ(optimizer.nonfinite(optimizer.gradient_norm()), "gradient norm");
}

TEST(Optimizer, HiddenMatricesHaveTheirOwnRate) {
  Toy one({.projection = "srht"}), two({.projection = "srht"});
  Optimizer first(one.pointers(), {.hidden_lr_factor = 0});
  Optimizer second(two.pointers(), {});
  one.accumulate(0);
  two.accumulate(0);
  first.step(0.01);
  second.step(0.01);
  EXPECT_TRUE(at::equal(one.parameters[0].weight, Toy({}).parameters[0].weight));
  EXPECT_TRUE(at::equal(one.parameters[1].weight, Toy({}).parameters[1].weight));
  EXPECT_TRUE(at::equal(one.parameters[3].weight, two.parameters[3].weight));
  EXPECT_FALSE(at::equal(one.parameters[3].weight, Toy({}).parameters[3].weight));
}

TEST(Optimizer, CountsItsBytes) {
  const int64_t a = Toy::kHidden * Toy::kRank, b = Toy::kMiddle * Toy::kHidden;
  const int64_t rest = Toy::kMiddle + Toy::kOut * Toy::kMiddle;
  const int64_t full = Toy::kHidden * Toy::kIn;
  Toy toy({.projection = "srht", .type = at::kBFloat16});
  const auto bf16 = [](const Parameter&) { return "bf16"; };
  using Bytes = std::map<std::string, int64_t>;
  const int64_t held = 3 * (2 * 4 + Toy::kRank * 4);  // 20 + 16 bits and the index, three times
  EXPECT_EQ(Optimizer(toy.pointers(), {.moment = bf16}).bytes(),
            (Bytes{{"moment", 2 * (a + b + rest)},
                   {"second_moment", 2 * (a + b + rest)},
                   {"carrier", 2 * a},
                   {"projection", held}}));
  EXPECT_EQ(Optimizer(toy.pointers(), {.kind = &muon_optimizer, .master_weights = true}).bytes(),
            (Bytes{{"momentum", 4 * (a + b)},
                   {"moment", 4 * rest},
                   {"second_moment", 4 * rest},
                   {"master", 4 * (full + b + rest)},
                   {"carrier", 2 * a},
                   {"projection", held}}));
}

TEST(Optimizer, RefusesBadInput) {
  Toy toy({});
  EXPECT_THROW(Optimizer(toy.pointers(), {.beta1 = 1}), InputError);
  EXPECT_THROW(Optimizer(toy.pointers(), {.beta2 = -0.1}), InputError);
  EXPECT_THROW(Optimizer(toy.pointers(), {.eps = 0}), InputError);
  EXPECT_THROW(Optimizer(toy.pointers(), {.weight_decay = kNan}), InputError);
  EXPECT_THROW(Optimizer(toy.pointers(), {.momentum = 1.5}), InputError);
  EXPECT_THAT([] { moment_kind("quantize:bits=8"); },
              ThrowsMessage<InputError>(HasSubstr("quantize:bits=8")));
  EXPECT_THROW(moment_kind("bf16:bits=8"), InputError);
  EXPECT_THAT([] { optimizer_named("moun"); },
              ThrowsMessage<InputError>(HasSubstr("did you mean `muon`")));

  Optimizer optimizer(toy.pointers(), {});
  EXPECT_THROW(optimizer.step(kNan), InputError);
  EXPECT_THROW(optimizer.step(-1), InputError);
  EXPECT_THAT([&] { optimizer.step(0.1); },
              ThrowsMessage<InputError>(HasSubstr("`a` has no grad")));
  EXPECT_EQ(optimizer.updates(), 0);

  std::vector<Parameter*> twice = toy.pointers();
  twice.push_back(twice[0]);
  EXPECT_THAT([&] { Optimizer(twice, {}); }, ThrowsMessage<InputError>(HasSubstr("named `a`")));
  Parameter turned{.name = "t", .weight = at::zeros({3, 4}).t()};
  EXPECT_THROW(Optimizer({&turned}, {}), InputError);
  Parameter half{.name = "h", .weight = at::zeros({3, 4}, at::kHalf)};
  EXPECT_THROW(Optimizer({&half}, {}), InputError);
  Parameter parts{.name = "p", .weight = at::zeros({3, 4}), .parts = {1, 1}};
  EXPECT_THROW(Optimizer({&parts}, {}), InputError);
}

// Kernels read memory by the type that they are given.
TEST(Optimizer, RefusesGradientsAndMomentsOfOtherTypes) {
  Toy toy({});
  Optimizer optimizer(toy.pointers(), {});
  const auto refused = [&](const at::Tensor& gradient, const at::Tensor& scale) {
    toy.accumulate(0);
    toy.parameters[3].leaf().mutable_grad() = gradient;
    const std::string error = error_of([&] { optimizer.step(0.1, scale); });
    for (Parameter& p : toy.parameters) p.leaf().mutable_grad().reset();
    return error;
  };
  const at::Tensor& v = toy.parameters[3].weight;
  EXPECT_THAT(refused(v.to(at::kDouble), {}),
              HasSubstr("gradient of `v` must be Float or BFloat16, is Double"));
  EXPECT_THAT(refused(at::zeros({2, 3}), {}), HasSubstr("gradient of `v` must be of its shape"));
  EXPECT_THAT(refused(at::zeros_like(v), at::ones({}, at::kDouble)),
              HasSubstr("grad_scale must be one Float on cpu, is Double"));
  EXPECT_EQ(optimizer.updates(), 0);
  EXPECT_EQ(refused(v.to(at::kBFloat16), {}), "");

  Parameter p{.name = "w", .weight = at::zeros({4, 4})};
  ParameterState mixed{.parameter = &p,
                       .m = Moment({4, 4}, p.weight.options(), {MomentType::kBFloat16}, true),
                       .v = Moment({4, 4}, p.weight.options(), {MomentType::kFloat32}, false)};
  const OptimizerOptions options;
  const StepContext context{.options = options, .learning_rate = 0.1, .step = 1};
  const at::Tensor ones = at::ones({4, 4});
  EXPECT_THAT([&] { adamw_optimizer.step(mixed, ones, context); },
              ThrowsMessage<InputError>(HasSubstr("both moments of `w` must be of one type")));
}

TEST(Muon, OrthogonalizesMatricesOfEveryShape) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{1, 1}, {1, 9}, {9, 1}, {16, 16}, {12, 40}, {40, 12}}) {
    for (const float scale : {1e-4f, 1.0f, 1e4f}) {
      const at::Tensor x = normal({rows, columns}, 5, scale);
      const at::Tensor y = orthogonalize(x, at::kFloat);
      EXPECT_TRUE(y.is_contiguous());
      const at::Tensor s = at::linalg_svdvals(y);
      EXPECT_LT(s.max().item<float>(), 1.3) << rows << "x" << columns;
      // The singular vectors stay: y is x's polar factor up to the spread of singular values.
      const auto [u, sigma, vh] = at::linalg_svd(x, false);
      if ((sigma.min() / sigma.norm()).item<float>() > 0.02) {  // five steps lift no smaller one
        EXPECT_GT(s.min().item<float>(), 0.3) << rows << "x" << columns;
      }
      EXPECT_GT((y * u.mm(vh)).sum().item<float>() / static_cast<float>(std::min(rows, columns)),
                0.6);
      EXPECT_LT((orthogonalize(x, at::kBFloat16).to(at::kFloat) - y).abs().max().item<float>(),
                0.1);
    }
  }
  EXPECT_EQ(orthogonalize(at::zeros({3, 4}), at::kFloat).count_nonzero().item<int64_t>(), 0);
}

}  // namespace
}  // namespace compact
