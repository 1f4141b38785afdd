// SPDX-License-Identifier: Apache-2.0
// Gated decoders whose MLP has a width that is not a multiple of 8: they compute what the same
// without padding does, and padding stays 0 whatever trains it.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <map>

#include "compact/base/named.h"
#include "compact/models/gemma/gemma.h"
#include "tests/plan/requests.h"

namespace compact {
namespace {

LlamaConfig odd_shape(int64_t width = 43) {
  LlamaConfig c = small_shape();
  c.block.intermediate = width;
  c.block.mlp_bias = true;
  c.initializer_range = 0.1;
  return c;
}

// In a file's form that has no room for padding.
LlamaConfig plain(LlamaConfig c) {
  c.block.qkv_parts = c.block.gate_up_parts = 1;
  return c;
}

StepInputs batch(int64_t number) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(number));
  const at::Tensor ids = at::randint(512, {2, 17}, generator, at::kLong);
  return {{ids.narrow(1, 0, 16).contiguous()}, ids.narrow(1, 1, 16).contiguous()};
}

// A parameter's weight, or its gradient, without padding.
at::Tensor real_part(const Parameter& p, const at::Tensor& t) {
  std::vector<at::Tensor> parts;
  int64_t row = 0;
  for (const int64_t rows : p.parts) {
    at::Tensor part = t.narrow(0, row, rows - p.padding.rows);
    if (p.padding.columns && t.size(1) == p.weight.size(1)) {
      part = part.narrow(1, 0, t.size(1) - p.padding.columns);
    }
    parts.push_back(part);
    row += rows;
  }
  return at::cat(parts);
}

void expect_zero_padding(const Network& network, const std::string& text) {
  int padded = 0;
  for (const Parameter* p : network.parameters()) {
    const auto nonzero = [](const at::Tensor& t) { return t.ne(0).sum().item<int64_t>(); };
    EXPECT_EQ(nonzero(p->weight), nonzero(real_part(*p, p->weight))) << text << ": " << p->name;
    padded += p->count() < p->weight.numel();
  }
  EXPECT_EQ(padded, 2 * 3) << text;  // gate_up, its bias, down
}

TEST(GatedPadding, IsNoneOfWhatCountsAndStarts) {
  const NetworkOptions options{.max_length = 16, .seed = 3};
  const Llama padded(odd_shape(), Policy(), options), as_is(plain(odd_shape()), Policy(), options);
  EXPECT_EQ(padded.parameter_count(), as_is.parameter_count());
  const auto a = padded.parameters(), b = as_is.parameters();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i]->name, b[i]->name);
    EXPECT_TRUE(at::equal(real_part(*a[i], a[i]->weight), b[i]->weight)) << a[i]->name;
    EXPECT_EQ(b[i]->count(), b[i]->weight.numel());
  }
  expect_zero_padding(padded, "start");
  const Llama even(odd_shape(48), Policy(), options);
  for (const Parameter* p : even.parameters()) EXPECT_EQ(p->count(), p->weight.numel());
}

// Products of other sizes may be summed in another order.
TEST(GatedPadding, ComputesTheSame) {
  for (const char* preset : {"off", "exact", "recompute", "compact", "compact-paper"}) {
    const Policy policy = Policy::preset(preset);
    const NetworkOptions options{.max_length = 16, .seed = 3};
    const Llama padded(odd_shape(), policy, options), as_is(plain(odd_shape()), policy, options);
    const StepInputs in = batch(1);
    const at::Tensor x = padded.loss(in.inputs, in.target, {}),
                     y = as_is.loss(in.inputs, in.target, {});
    EXPECT_NEAR(x.item<double>(), y.item<double>(), 1e-5 * y.item<double>()) << preset;
    x.backward();
    y.backward();
    const auto a = padded.parameters(), b = as_is.parameters();
    for (size_t i = 0; i < a.size(); ++i) {
      const at::Tensor got = a[i]->leaf().grad(), want = b[i]->leaf().grad();
      const at::Tensor real = real_part(*a[i], got);
      EXPECT_LE((real - want).norm().item<double>(), 1e-5 * want.norm().item<double>())
          << preset << " " << a[i]->name;
      EXPECT_EQ(got.ne(0).sum().item<int64_t>(), real.ne(0).sum().item<int64_t>())
          << preset << " " << a[i]->name;
    }
  }
}

class GatedPaddingOf : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(EveryOptimizer, GatedPaddingOf, testing::ValuesIn(names_of(optimizers())),
                         [](const auto& info) { return info.param; });

// Codes in few bits come back as other values than 0, and projections mix all columns.
TEST_P(GatedPaddingOf, StaysZero) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const char* policy :
         {"off", "exact", "recompute", "compact", "compact-paper", "gact-l1", "gact-l3",
          "slot role:product = quantize:bits=2\nslot role:gate = quantize:bits=2\nmoment * = f8\n",
          "grad layers.*.mlp.{gate_up,down} = "
          "project:rank=0.5,type=gaussian,share=false,period=2\n"}) {
      const PlanRequest r = small_request(policy, type, {.batch = 2, .length = 16}, odd_shape(),
                                          optimizer_named(GetParam()));
      const Llama model(r.shape, r.policy, {.dtype = type, .max_length = 16});
      Optimizer optimizer(model.parameters(), r.optimizer(r.policy));
      for (int64_t step = 0; step < 4; ++step) {
        train_step(model, optimizer, {.loss_scale = 1.0 / 32, .learning_rate = 0.01},
                   [&](int64_t) { return batch(step); }, {});
      }
      expect_zero_padding(model, std::string(policy) + " " + c10::toString(type));
      EXPECT_TRUE(model.named_tensors()[1].second.isfinite().all().item<bool>());
    }
  }
}

// Checkpoints from before there was padding.
TEST_P(GatedPaddingOf, StatesWithoutItGoOn) {
  for (const char* policy :
       {"exact", "grad layers.*.mlp.{gate_up,down} = project:rank=0.5,period=2\n"}) {
    const PlanRequest r = small_request(policy, at::kFloat, {.batch = 2, .length = 16}, odd_shape(),
                                        optimizer_named(GetParam()));
    const Llama padded_model(r.shape, r.policy, {.max_length = 16, .seed = 5}),
        as_is(plain(r.shape), r.policy, {.max_length = 16, .seed = 5});
    Optimizer before(as_is.parameters(), r.optimizer(r.policy)),
        after(padded_model.parameters(), r.optimizer(r.policy));
    const auto steps = [&](const Llama& model, Optimizer& optimizer, int64_t first, int64_t last) {
      for (int64_t step = first; step < last; ++step) {
        train_step(model, optimizer, {.loss_scale = 1.0 / 32, .learning_rate = 1e-3},
                   [&](int64_t) { return batch(step); }, {});
      }
    };
    steps(as_is, before, 0, 3);
    const auto a = padded_model.parameters(), b = as_is.parameters();
    {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < a.size(); ++i) {
        a[i]->weight.copy_(padded(b[i]->weight, a[i]->parts, a[i]->padding));
      }
    }
    after.load(before.state());
    steps(as_is, before, 3, 6);
    steps(padded_model, after, 3, 6);
    expect_zero_padding(padded_model, policy);
    for (size_t i = 0; i < a.size(); ++i) {
      const at::Tensor got = real_part(*a[i], a[i]->weight), want = b[i]->weight;
      EXPECT_LE((got - want).norm().item<double>(), 2e-4 * want.norm().item<double>())
          << policy << a[i]->name;
    }
  }
}

TEST(GatedPadding, FilesHaveNone) {
  const NetworkOptions one{.max_length = 16, .seed = 3}, two{.max_length = 16, .seed = 4};
  const Llama from(odd_shape(), Policy(), one), to(odd_shape(), Policy(), two);
  std::map<std::string, at::Tensor> file;
  for (const auto& [name, t] : from.named_tensors()) file[name] = t.clone();
  EXPECT_EQ(file.at("model.layers.0.mlp.gate_proj.weight").sizes(), at::IntArrayRef({43, 64}));
  EXPECT_EQ(file.at("model.layers.0.mlp.up_proj.bias").sizes(), at::IntArrayRef({43}));
  EXPECT_EQ(file.at("model.layers.1.mlp.down_proj.weight").sizes(), at::IntArrayRef({64, 43}));
  const at::NoGradGuard no_grad;
  for (auto& [name, t] : to.named_tensors()) t.copy_(file.at(name));
  expect_zero_padding(to, "read");
  const StepInputs in = batch(1);
  EXPECT_TRUE(at::equal(from.loss(in.inputs, in.target, {}), to.loss(in.inputs, in.target, {})));
}

// Gemma's blocks have another gate.
TEST(GatedPadding, OfGemmaComputesTheSame) {
  const GemmaConfig c{.block = gemma_block(true, 32, 43, 4, 2, 8),
                      .num_hidden_layers = 2,
                      .vocab_size = 512,
                      .sliding_layers = {true, false}};
  const Gemma model(c, Policy::preset("exact"), {.max_length = 16});
  const StepInputs in = batch(1);
  model.loss(in.inputs, in.target, {}).backward();
  for (const Parameter* p : model.parameters()) {
    const at::Tensor g = p->weight.grad(), real = real_part(*p, g);
    EXPECT_EQ(g.ne(0).sum().item<int64_t>(), real.ne(0).sum().item<int64_t>()) << p->name;
    EXPECT_GT(real.ne(0).sum().item<int64_t>(), 0) << p->name;
  }
}

TEST(GatedPadding, IsPlanned) {
  install_counting_allocator();
  for (const char* policy : {"off", "exact", "compact", "compact-paper"}) {
    const PlanRequest r =
        small_request(policy, at::kFloat, {.batch = 2, .length = 32}, odd_shape());
    const StepMemory plan = plan_step(r).memory, real = run_for_real(step_request(r));
    EXPECT_EQ(plan.peak, real.peak) << policy;
    EXPECT_EQ(plan.weights, real.weights) << policy;
    EXPECT_EQ(plan.saved, real.saved) << policy;
  }
}

}  // namespace
}  // namespace compact
