// SPDX-License-Identifier: Apache-2.0
// Operations that a scope that rebuilds must not run again: functions of users, branches that no
// gradient goes through, batch norm's running statistics.
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <span>
#include <thread>

#include "tests/ops/rebuild.h"

namespace compact {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::backward;
using torch::autograd::variable_list;

at::Tensor rows() { return normal_tensor({32, 64}, 1); }

// A copy, of which one element is written as kernels do that PyTorch does not see.
at::Tensor changed(const at::Tensor& x) {
  at::Tensor y = x.clone();
  std::span(y.data_ptr<float>(), static_cast<size_t>(y.numel()))[0] += 1;
  return y;
}

// Saves what it made, in one step or two.
template <bool kTwice>
struct Saves final : torch::autograd::Function<Saves<kTwice>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    const at::Tensor y = changed(x);
    context->save_for_backward(kTwice ? variable_list{y, changed(y)} : variable_list{y});
    return y * 1;
  }
  static variable_list backward(AutogradContext* context, variable_list g) {
    return {g[0] * context->get_saved_variables().back()};
  }
};

// Gives a changed copy of its second argument, which has no gradient.
struct Gives final : torch::autograd::Function<Gives> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& other) {
    return changed(other);
  }
  static variable_list backward(AutogradContext* context, variable_list g) {
    return {g[0], at::Tensor()};
  }
};

at::Tensor watched(const at::Tensor& x) {
  RECORD_FUNCTION("rebuild_once::watched", std::vector<c10::IValue>());
  return changed(x);
}

// Every call gives something else.
float calls_of_counted = 0;
at::Tensor counted(const at::Tensor& x) { return x + ++calls_of_counted; }

TORCH_LIBRARY(rebuild_once, m) {
  m.def("composite(Tensor x) -> Tensor", changed);
  m.def("counted(Tensor x) -> Tensor", {at::Tag::pointwise});
  m.impl("counted", c10::DispatchKey::CPU, counted);
}

at::Tensor call(const char* name, const at::Tensor& x) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<at::Tensor(const at::Tensor&)>()
      .call(x);
}

struct OfUsers {
  const char* name;
  at::Tensor (*run)(const at::Tensor& x);
};

class RebuildOfUsers : public testing::TestWithParam<OfUsers> {};

TEST_P(RebuildOfUsers, IsHeld) {
  expect_same_bits([] {
    calls_of_counted = 0;
    const at::Tensor w = trained({64, 64}, 2), v = trained({64, 64}, 3);
    const at::Tensor x = at::mm(rows(), w);
    // x is held, so that whatever is made of it could be made again.
    return Graph{at::mm(GetParam().run(x), v).square().sum() + x.square().sum(), {w, v}};
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, RebuildOfUsers,
    testing::Values(OfUsers{"Saves", [](const at::Tensor& x) { return Saves<false>::apply(x); }},
                    OfUsers{"SavesTwo", [](const at::Tensor& x) { return Saves<true>::apply(x); }},
                    OfUsers{"Gives",
                            [](const at::Tensor& x) { return Gives::apply(x, x.detach()); }},
                    OfUsers{"GivesOfWhatHasNoGradient",
                            [](const at::Tensor& x) {
                              const at::Tensor mask = rows().mul(2);
                              return Gives::apply(x * mask, mask);
                            }},
                    OfUsers{"Watched", watched},
                    OfUsers{"Composite",
                            [](const at::Tensor& x) { return call("rebuild_once::composite", x); }},
                    OfUsers{"Operator",
                            [](const at::Tensor& x) {
                              const at::Tensor noise = rows().mul(2);
                              return x * noise * call("rebuild_once::counted", noise);
                            }}),
    [](const auto& info) { return std::string(info.param.name); });

// A mean on another thread, whose backward pass comes after all others, as it is numbered first.
at::Tensor late_mean(const at::Tensor& t) {
  at::Tensor mean;
  std::thread([&] { mean = t.mean(); }).join();
  return mean;
}

TEST(RebuildOnce, BranchesWithoutGradientAreReadAfterAnUpdate) {
  using Branch = at::Tensor (*)(const at::Tensor& y, const at::Tensor& x);
  const Branch detached = [](const at::Tensor& y, const at::Tensor&) {
    return at::exp(y.detach() * 0.1);
  };
  const Branch compared = [](const at::Tensor& y, const at::Tensor& x) {
    return (y > 0.3).to(at::kFloat) * x;
  };
  for (const Branch branch : {detached, compared}) {
    SCOPED_TRACE(branch == detached ? "detached" : "compared");
    // Made outside of the scope, which otherwise holds it.
    std::vector<at::Tensor> biases{trained({64}, 2), trained({64}, 2)};
    expect_same_bits([&] {
      const at::Tensor b = biases.back(), w = trained({64, 64}, 3), v = trained({64, 64}, 4);
      biases.pop_back();
      // An optimizer inside the backward pass.
      at::Tensor(b).register_hook([b](const at::Tensor& g) { b.variable_data().sub_(g, 1e4); });
      const at::Tensor x = rows(), h = at::mm(x, v).to(at::kBFloat16);
      const at::Tensor y = (h + b.to(at::kBFloat16)).to(at::kFloat);
      const at::Tensor z = branch(y, x) * at::mm(x, w);
      return Graph{late_mean(z) + (y.sum() + h.square().to(at::kFloat).sum()) * 1e-3, {b, w, v}};
    });
  }
}

struct Statistics {
  std::vector<at::Tensor> values;  // the loss, the statistics and gradients
  int64_t held = 0;
};

// Batch norm with statistics that are made by the pass, and a ReLU that writes what it gives.
Statistics normalised(bool training, bool scoped) {
  std::optional<SavedTensorScope> scope;
  if (scoped) scope.emplace(kRebuild, SavedTensorOptions{});
  const at::Tensor mean = at::zeros({8}), variance = at::ones({8});
  const at::Tensor k = trained({8, 3, 3, 3}, 2), g = trained({8}, 4), b = trained({8}, 5);
  at::Tensor x = at::conv2d(normal_tensor({2, 3, 16, 16}, 6), k, {}, 1, 1);
  x = at::batch_norm(x, g, b, mean, variance, training, 0.1, 1e-5, false);
  at::relu_(x);
  const at::Tensor loss = (x * x.sigmoid()).square().mean();
  Statistics found;
  if (scope) found.held = scope->report().stored();
  backward({loss}, {});
  found.values = {loss.detach(), mean, variance, k.grad(), g.grad(), b.grad()};
  return found;
}

TEST(RebuildOnce, RunningStatisticsChangeOnce) {
  for (const bool training : {false, true}) {
    const Statistics want = normalised(training, false), got = normalised(training, true);
    for (size_t i = 0; i < want.values.size(); ++i) {
      EXPECT_TRUE(at::equal(got.values[i], want.values[i])) << training << ' ' << i;
    }
    // The convolution's result; images and statistics. What the norm gave is rebuilt.
    const int64_t map = 2 * 8 * 16 * 16 * 4;
    EXPECT_LT(got.held, map + 2 * 3 * 16 * 16 * 4 + 1024) << training;
  }
}

TEST(RebuildOnce, RunningStatisticsAreReadAsTheyWere) {
  expect_same_bits([] {
    const at::Tensor w = trained({64, 64}, 2), mean = at::zeros({64}) + 0.5,
                     variance = at::ones({64});
    const at::Tensor x = at::mm(rows(), w);
    // In float64 it is made again of the mean.
    const at::Tensor y = at::mul(x.to(at::kDouble), mean.to(at::kDouble));
    const at::Tensor z = at::batch_norm(x, {}, {}, mean, variance, true, 0.1, 1e-5, false);
    return Graph{y.sum().to(at::kFloat) + z.square().sum(), {w}};
  });
}

}  // namespace
}  // namespace compact
