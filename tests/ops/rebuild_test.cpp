// SPDX-License-Identifier: Apache-2.0
// Saved tensors of plain operations, rebuilt: every bit as without a scope.
#include "tests/ops/rebuild.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <map>
#include <memory>

namespace compact {
namespace {

using testing::HasSubstr;
using torch::autograd::backward;

at::Tensor input() { return normal_tensor({32, 64}, 1); }

TEST(Rebuild, HoldsTheProductAlone) {
  const Held held = expect_same_bits([] {
    const at::Tensor w = trained({64, 64}, 2), v = trained({64, 8}, 3);
    const at::Tensor h = at::mm(input(), w);
    return Graph{at::mm(at::silu(h).mul(2).sigmoid(), v).square().sum(), {w, v}};
  });
  // Saved: x, h, the sigmoid (twice), the last product; without x: one h, one product.
  EXPECT_EQ(held.plain - held.held, 32 * 64 * 4);
}

// A cache of keys, whose beginning is gone once the first ones are in it.
TEST(Rebuild, OfWhatHadNoElements) {
  const Held held = expect_same_bits([] {
    const at::Tensor w = trained({64, 64}, 2), v = trained({64, 8}, 3);
    at::Tensor keys = at::empty({0});
    keys = at::cat({keys, at::silu(at::mm(input(), w))});
    return Graph{at::mm(keys, v).square().sum(), {w, v}};
  });
  EXPECT_EQ(held.plain - held.held, 32 * 64 * 4);
}

TEST(Rebuild, NormsActivationsAndCasts) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Held held = expect_same_bits([type] {
      const at::Tensor w = trained({64, 64}, 2), g = trained({64}, 3), b = trained({64}, 4);
      at::Tensor x = at::mm(input().to(type), w.to(type));
      x = at::layer_norm(x, {64}, g.to(type), b.to(type));
      x = at::gelu(x).to(at::kFloat);
      x = x * at::rsqrt(x.pow(2).mean(-1, true) + 1e-6);
      x = at::cat({x.narrow(1, 32, 32).neg(), x.narrow(1, 0, 32)}, 1).softmax(-1);
      return Graph{(x.exp() * x).log().mean(), {w, g, b}};
    });
    EXPECT_LT(held.held * 2, held.plain);
  }
}

TEST(Rebuild, ImageNetworkInPlace) {
  const at::Tensor mean = at::zeros({8}), variance = at::ones({8});
  expect_same_bits([&] {
    mean.zero_(), variance.fill_(1);
    const at::Tensor k = trained({8, 3, 3, 3}, 2), k2 = trained({8, 8, 3, 3}, 3),
                     g = trained({8}, 4), b = trained({8}, 5);
    at::Tensor x = at::conv2d(normal_tensor({2, 3, 16, 16}, 6), k, {}, 1, 1);
    x = at::batch_norm(x, g, b, mean, variance, true, 0.1, 1e-5, false);
    at::relu_(x);
    at::Tensor y = at::conv2d(x, k2, {}, 1, 1);
    y = at::batch_norm(y, g, b, mean, variance, true, 0.1, 1e-5, false);
    y += x;
    at::relu_(y);
    const at::Tensor once = mean.clone();
    return Graph{at::max_pool2d(y, 2).square().mean() + once.sum(), {k, k2, g, b}};
  });
  // A second change would be seen here: plain and scope began from the same statistics.
  const at::Tensor left = mean.clone();
  mean.zero_(), variance.fill_(1);
  const at::Tensor k = trained({8, 3, 3, 3}, 2), k2 = trained({8, 8, 3, 3}, 3), g = trained({8}, 4),
                   b = trained({8}, 5);
  at::Tensor x = at::conv2d(normal_tensor({2, 3, 16, 16}, 6), k, {}, 1, 1);
  x = at::batch_norm(x, g, b, mean, variance, true, 0.1, 1e-5, false).relu();
  at::batch_norm(at::conv2d(x, k2, {}, 1, 1), g, b, mean, variance, true, 0.1, 1e-5, false);
  EXPECT_TRUE(at::equal(left, mean));
}

// As modules drop on a GPU.
TEST(Rebuild, NativeDropoutIsMadeAgainOfItsMask) {
  struct Case {
    double chance;
    std::optional<bool> train;
    bool again;
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const auto& [chance, train, again] : {Case{0.3, true, true}, Case{0.1, std::nullopt, true},
                                               Case{0, true, false}, Case{0.3, false, false}}) {
      SCOPED_TRACE(cat(type, " ", chance, " ", train.value_or(true)));
      const at::Tensor given = input().to(type);
      const Held held = expect_same_bits([&] {
        const at::Tensor w = trained({64, 64}, 2).to(type).detach().requires_grad_();
        const at::Tensor x = at::sigmoid(at::mm(given, w));
        const at::Tensor dropped = std::get<0>(at::native_dropout(x, chance, train));
        return Graph{
            (dropped * dropped).sum() + std::get<0>(at::native_dropout(x, 0.5, true)).sum(), {w}};
      });
      // Held are the input, the sigmoid and two masks in bits.
      constexpr int64_t kElements = 32 * 64;
      const int64_t dropped = kElements * static_cast<int64_t>(c10::elementSize(type));
      EXPECT_EQ(held.plain - held.held, 2 * (kElements - kElements / 8) + (again ? dropped : 0));
    }
  }
}

TEST(Rebuild, WritesInsideAreSeen) {
  // Nobody saves h, so that it may be written; the sigmoid is rebuilt from a copy of it.
  const auto forward = [](bool through_data) {
    const at::Tensor w = trained({64, 64}, 2), b = trained({64}, 3);
    const at::Tensor h = at::mm(input(), w).to(at::kBFloat16);
    at::Tensor y = at::sigmoid((h + b.to(at::kBFloat16)).to(at::kFloat));
    const at::Tensor loss = at::mm(y, w).square().mean();
    y.reset();
    if (through_data) {
      at::Tensor(h).variable_data().add_(1);
    } else {
      at::Tensor(h).detach().add_(1);
    }
    return Graph{loss, {w, b}};
  };
  for (const bool through_data : {false, true}) {
    expect_same_bits([&] { return forward(through_data); });
  }
}

TEST(Rebuild, AWriteBesideWhatIsNeededAndOneThatIsNot) {
  for (const bool again : {false, true}) {
    const Held held = expect_same_bits([again] {
      const at::Tensor w = trained({64, 64}, 2);
      const at::Tensor h = at::mm(input(), w).to(at::kBFloat16);
      const at::Tensor half = h.narrow(0, 16, 16).to(at::kFloat);
      at::Tensor y = at::sigmoid(half);
      const at::Tensor loss = at::mm(y, w).square().mean() + h.to(at::kFloat).exp().mean();
      y.reset();
      const at::NoGradGuard no_grad;
      h.narrow(0, 0, 16).fill_(1);
      if (again) h.narrow(0, 16, 16).fill_(2);
      return Graph{loss, {w}};
    });
    EXPECT_LT(held.held, held.plain);
  }
}

TEST(Rebuild, WritesAfterwardsOfWhatOthersOwn) {
  at::Tensor kept;
  expect_same_bits(
      [&] {
        const at::Tensor w = trained({64, 64}, 2), b = trained({64}, 3);
        kept = at::mm(input(), w).to(at::kBFloat16);
        const at::Tensor y = at::sigmoid((kept + b.to(at::kBFloat16)).to(at::kFloat));
        return Graph{at::mm(y, w).square().mean(), {w, b}};
      },
      [&](const Graph&) { kept.variable_data().zero_(); });
}

struct Biased {
  at::Tensor w = trained({64, 64}, 2), b = trained({64}, 3), loss;
  explicit Biased() {
    SavedTensorScope scope(kRebuild,
                           {.parameters = {{"fc.weight", w}, {"fc.bias", b}}, .least_elements = 0});
    const at::Tensor h = at::mm(input(), w);
    loss = h.square().sum() + at::mm(at::sigmoid(h + b), w).mean();
  }
};

std::string error_of_backward(const at::Tensor& loss) {
  try {
    backward({loss}, {});
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

// As FSDP does, whose parameters have no names and are there only while their layer runs.
TEST(Rebuild, FreedInsideTheScope) {
  const auto run = [](bool scoped, bool named, bool early, bool made_inside) {
    const at::Tensor w = trained({64, 64}, 2), before = trained({64}, 3);
    std::optional<SavedTensorScope> scope;
    SavedTensorOptions options;
    if (named) options.parameters = {{"fc.weight", w}};
    if (scoped) scope.emplace(kRebuild, options);
    const at::Tensor b =
        made_inside ? at::empty({64}).copy_(before.detach()).requires_grad_() : before;
    const auto free = [&] { b.storage().unsafeGetStorageImpl()->set_nbytes(0); };
    const at::Tensor h = at::mm(input(), w);
    at::Tensor loss = h.square().sum();
    const at::Tensor sum = h + b;
    if (early) free();
    loss = loss + at::mm(at::sigmoid(sum), w).mean();
    if (!early) free();
    scope.reset();
    const std::string error = error_of_backward(loss);
    return std::pair(error, error.empty() ? std::vector{loss.detach(), w.grad(), b.grad()}
                                          : std::vector<at::Tensor>());
  };
  for (int how = 0; how < 8; ++how) {
    SCOPED_TRACE(how);
    const bool named = how & 1, early = how & 2, made_inside = how & 4;
    const auto want = run(false, named, early, made_inside).second;
    const auto [error, got] = run(true, named, early, made_inside);
    if (!named && !early) {
      EXPECT_THAT(error, HasSubstr("was resized before the backward pass"));
      continue;
    }
    EXPECT_EQ(error, "");
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
  }
}

TEST(Rebuild, OutlivesItsNetwork) {
  auto net = std::make_unique<Biased>();
  at::Tensor loss = net->loss, w = net->w;
  net.reset();
  backward({loss}, {});
  EXPECT_TRUE(w.grad().defined());
}

TEST(Rebuild, GatesOfOneProductAreNotCopied) {
  const Held held = expect_same_bits([] {
    const at::Tensor w = trained({64, 256}, 2), u = trained({64, 256}, 3);
    at::Tensor h = at::zeros({32, 64}), c = h;
    for (int i = 0; i < 4; ++i) {
      const auto gates = at::unsafe_chunk(at::mm(input(), w) + at::mm(h, u), 4, 1);
      at::Tensor in = gates[0], forget = gates[1], cell = gates[2], out = gates[3];
      in.sigmoid_(), forget.sigmoid_(), cell.tanh_(), out.sigmoid_();
      c = forget * c + in * cell;
      h = out * c.tanh();
    }
    return Graph{h.sum(), {w, u}};
  });
  EXPECT_LE(held.held, held.plain);
}

TEST(Rebuild, OtherThreadsShareTheWorkAsBefore) {
  const int before = at::get_num_threads();
  expect_same_bits(
      [] {
        at::set_num_threads(2);
        const at::Tensor x = normal_tensor({333, 1111}, 1).requires_grad_(),
                         w = trained({1111, 7}, 2);
        return Graph{at::mm(at::gelu(x * 1.01).softmax(-1).exp(), w).sum(), {x, w}};
      },
      [](const Graph&) { at::set_num_threads(1); });
  at::set_num_threads(before);
}

TEST(Rebuild, NothingIsLeftAndTheTapeIsBounded) {
  SavedTensorScope scope(kRebuild, {.least_elements = 0});
  const at::Tensor w = trained({64, 64}, 2);
  at::Tensor x = at::mm(input(), w).detach();
  for (int i = 0; i < 3000; ++i) x = x * 0.999;
  {
    const at::Tensor loss = at::mm(at::gelu(at::mm(x, w)), w).sum();
    EXPECT_GT(scope.live_bytes(), 0);
    backward({loss}, {});
  }
  EXPECT_EQ(scope.live_bytes(), 0);
}

TEST(Rebuild, ALineKeepsWhatItNames) {
  const Policy policy =
      Policy::parse("slot role:cheap = recompute\nslot *.sin.input = keep\n", "test");
  SavedTensorScope scope(policy, {.least_elements = 0});
  const at::Tensor y = at::mm(input(), trained({64, 64}, 2)).exp().mul(2).sin().cos();
  const SavedTensorReport report = scope.report();
  std::map<std::string, std::string> how;
  for (const SavedTensor& t : report.tensors) how[t.name] = t.treatment.text();
  EXPECT_THAT(how, testing::Contains(testing::Pair(HasSubstr("sin.input"), "keep")));
  EXPECT_THAT(how, testing::Contains(testing::Pair(HasSubstr("cos.input"), "recompute")));
}

}  // namespace
}  // namespace compact
