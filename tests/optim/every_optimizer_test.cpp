// SPDX-License-Identifier: Apache-2.0
// The duties of every row of the table, whatever its mathematics: resuming, bf16 weights and
// moments in few bits that move as f32 ones do, projected weights, clipping, decay, f32 sums, the
// meta device. tests/plan asks for updates inside the backward pass and for planned bytes.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/optim/every_optimizer.h"

namespace compact {
namespace {

INSTANTIATE_TEST_SUITE_P(All, EveryOptimizer, testing::ValuesIn(names_of(optimizers())),
                         [](const auto& info) { return info.param; });

// Stops in the middle of a projection period and of an accumulation, and goes on in a fresh model.
void check_resume(const ToyOptions& toy, const OptimizerOptions& options) {
  constexpr int64_t kStop = 7, kEnd = 13;
  Toy straight(toy), resumed(toy);
  Optimizer optimizer(straight.pointers(), options);
  for (int64_t step = 0; step < kStop; ++step) {
    optimizer.begin_backward(0.01);
    straight.accumulate(step);
    optimizer.step(0.01);
  }
  optimizer.begin_backward(0.01);
  straight.accumulate(kStop, 0);
  const OptimizerState saved = copy_of(optimizer.state());
  for (size_t i = 0; i < resumed.parameters.size(); ++i) {
    resumed.parameters[i].weight.copy_(straight.parameters[i].weight);
  }
  Optimizer again(resumed.pointers(), options);
  again.load(saved);
  EXPECT_EQ(again.updates(), kStop);
  for (int64_t step = kStop; step < kEnd; ++step) {
    for (auto [model, o] : {std::pair{&straight, &optimizer}, {&resumed, &again}}) {
      o->begin_backward(0.01);
      if (step > kStop) model->accumulate(step, 0);
      model->accumulate(step, 1);
      o->step(0.01, Optimizer::clip_factor(o->gradient_norm(), 0.2));
    }
  }
  expect_equal_weights(straight, resumed);
  const OptimizerState one = optimizer.state(), two = again.state();
  EXPECT_EQ(one.numbers, two.numbers);
  ASSERT_EQ(one.tensors.size(), two.tensors.size());
  for (size_t i = 0; i < one.tensors.size(); ++i) {
    EXPECT_TRUE(at::equal(one.tensors[i].second, two.tensors[i].second)) << one.tensors[i].first;
  }
}

TEST_P(EveryOptimizer, ResumesBitForBit) {
  std::vector<std::string> projected = names_of(projections());
  projected.emplace_back();
  for (const std::string& projection : projected) {
    for (const auto& [type, master] :
         {std::pair{at::kFloat, false}, {at::kBFloat16, false}, {at::kBFloat16, true}}) {
      for (const char* moment : {"f32", "bf16", "f8"}) {
        SCOPED_TRACE(cat(projection, " ", c10::toString(type), master ? " master " : " ", moment));
        check_resume({.projection = projection, .type = type}, options(master, moment));
      }
    }
  }
}

// How far A goes in 200 updates by one gradient.
at::Tensor movement(const ToyOptions& o, const OptimizerOptions& options, double rate) {
  Toy toy(o);
  Optimizer optimizer(toy.pointers(), options);
  const auto now = [&] {
    const at::Tensor& master = optimizer.states()[0].master;
    return (master.defined() ? master : toy.parameters[0].weight).to(at::kFloat).clone();
  };
  const at::Tensor start = now();
  const at::Tensor gradient = normal(toy.parameters[0].leaf().sizes(), 9).to(toy.type);
  for (int64_t step = 0; step < 200; ++step) {
    for (Parameter& p : toy.parameters) p.leaf().mutable_grad() = at::zeros_like(p.leaf());
    toy.parameters[0].leaf().mutable_grad() = gradient;
    optimizer.step(rate);
  }
  return now() - start;
}

// Updates of about a twentieth of half a unit of a bf16 weight add up, projected ones too.
TEST_P(EveryOptimizer, MovesBf16WeightsWithoutBias) {
  constexpr double kUpdate = 2e-5, kTry = 1e-4;
  for (const char* projection : {"", "srht"}) {
    for (const bool master : {false, true}) {
      SCOPED_TRACE(cat(projection, master ? " master" : ""));
      const ToyOptions exact{.projection = projection, .period = 0};
      const ToyOptions rounded{.projection = projection, .period = 0, .type = at::kBFloat16};
      const double tried = movement(exact, {.kind = kind_}, kTry).square().mean().item<double>();
      const double rate = kTry * 200 * kUpdate / std::sqrt(tried);
      const at::Tensor wanted = movement(exact, {.kind = kind_}, rate);
      const at::Tensor got = movement(rounded, {.kind = kind_, .master_weights = master}, rate);
      // The share of the exact movement that was made, along it. A stochastic weight carries
      // noise of up to a unit an element, hence the wide bound; a standing weight has 0.
      const double share = ((got * wanted).sum() / wanted.square().sum()).item<double>();
      EXPECT_NEAR(share, 1, master ? 0.02 : 0.2);
    }
  }
}

// The weights as with moments in f32, but for rounding.
TEST_P(EveryOptimizer, TakesMomentsInFewBits) {
  for (const char* projection : {"", "srht"}) {
    std::vector<at::Tensor> exact;
    int64_t exact_bytes = 0;
    for (const std::string moment : {"f32", "bf16", "f8"}) {
      Toy toy({.projection = projection});
      Optimizer optimizer(toy.pointers(),
                          {.kind = kind_, .moment = [=](const Parameter&) { return moment; }});
      std::vector<at::Tensor> moved;
      for (const Parameter& p : toy.parameters) moved.push_back(-p.weight);
      for (uint64_t step = 0; step < 10; ++step) {
        for (size_t i = 0; i < toy.parameters.size(); ++i) {
          const at::Tensor& leaf = toy.parameters[i].leaf();
          leaf.mutable_grad() = normal(leaf.sizes(), derive(derive(7, step), i));
        }
        optimizer.step(0.01);
      }
      int64_t bytes = 0;
      for (size_t i = 0; i < moved.size(); ++i) {
        moved[i] += toy.parameters[i].weight;
        const ParameterState& s = optimizer.states()[i];
        for (const Moment* held : {&s.m, &s.v}) {
          if (!held->defined()) continue;
          bytes += held->nbytes();
          EXPECT_EQ(held->packed(), moment == "f8");
        }
      }
      if (exact.empty()) {
        exact = moved;
        exact_bytes = bytes;
      }
      EXPECT_LE(bytes, exact_bytes / (moment == "f32" ? 1 : 2)) << moment;
      const double bound = moment == "f8" ? 0.2 : 0.02;
      for (size_t i = 0; i < moved.size(); ++i) {
        EXPECT_LE((moved[i] - exact[i]).norm().item<double>(),
                  bound * exact[i].norm().item<double>())
            << projection << " " << moment << " " << toy.parameters[i].name;
      }
    }
  }
}

// A carrier is updated as a matrix of its own would be: the weight goes by scale * that P^T.
TEST_P(EveryOptimizer, UpdatesProjectedWeightsInTheirSubspace) {
  for (const bool share : {false, true}) {
    Toy toy({.projection = "gaussian", .share = share, .period = 0});
    Parameter& a = toy.parameters[0];
    const Carrier& c = *a.carrier;
    Parameter own{.name = "own",
                  .weight = at::zeros({Toy::kHidden, Toy::kRank}),
                  .parts = a.parts,
                  .hidden = true};
    const at::Tensor start = a.weight.clone();
    Optimizer projected({&a}, {.kind = kind_}), plain({&own}, {.kind = kind_});
    for (uint64_t step = 0; step < 5; ++step) {
      a.leaf().mutable_grad() = normal(own.weight.sizes(), derive(7, step));
      own.weight.mutable_grad() = normal(own.weight.sizes(), derive(7, step));
      projected.step(0.01);
      plain.step(0.01);
      EXPECT_EQ(c.value.count_nonzero().item<int64_t>(), 0);
    }
    std::vector<at::Tensor> moved;
    int64_t row = 0;
    for (size_t i = 0; i < c.rows.size(); row += c.rows[i++]) {
      moved.push_back(own.weight.narrow(0, row, c.rows[i]).mm(c.projections[i]->matrix().t()));
    }
    const at::Tensor want = at::cat(moved) * c.scale;
    EXPECT_LE((a.weight - start - want).norm().item<double>(), 1e-5 * want.norm().item<double>());
  }
}

// Scaling while reading is the same as scaling the gradients first, by a power of two bit for bit.
TEST_P(EveryOptimizer, ClipsWhileReading) {
  Toy one({.projection = "srht"}), two({.projection = "srht"});
  Optimizer first(one.pointers(), {.kind = kind_}), second(two.pointers(), {.kind = kind_});
  for (int64_t step = 0; step < 3; ++step) {
    one.accumulate(step);
    two.accumulate(step);
    first.step(0.01, at::full({}, 0.25f));
    for (Parameter& p : two.parameters) p.leaf().mutable_grad().mul_(0.25);
    second.step(0.01);
  }
  expect_equal_weights(one, two);
}

TEST_P(EveryOptimizer, FreesGradientsUnchangedAndCountsVersions) {
  Toy toy({.projection = "srht"});
  Optimizer optimizer(toy.pointers(), {.kind = kind_, .weight_decay = 0.1});
  std::vector<int64_t> versions;
  for (const Parameter& p : toy.parameters) versions.push_back(p.weight._version());
  toy.accumulate(0);
  std::vector<at::Tensor> held, copies;
  for (const Parameter& p : toy.parameters) {
    held.push_back(p.leaf().grad());
    copies.push_back(held.back().clone());
  }
  optimizer.step(0.01, at::full({}, 0.5f));
  for (size_t i = 0; i < versions.size(); ++i) {
    EXPECT_TRUE(at::equal(held[i], copies[i]));
    EXPECT_FALSE(toy.parameters[i].leaf().grad().defined());
    EXPECT_GT(toy.parameters[i].weight._version(), versions[i]);
  }
  EXPECT_EQ(optimizer.updates(), 1);
}

// Learning rate 0 moves nothing. Weight decay alone shrinks the weights that decay: projected ones
// and decoupled ones by what it says, others as the optimizer takes it from the gradient.
TEST_P(EveryOptimizer, DecaysWeights) {
  Toy toy({.projection = "rademacher"});
  Optimizer optimizer(toy.pointers(), {.kind = kind_, .weight_decay = 0.5});
  std::vector<at::Tensor> before;
  for (const Parameter& p : toy.parameters) before.push_back(p.weight.clone());
  const auto zero_gradients = [&] {
    for (Parameter& p : toy.parameters) p.leaf().mutable_grad() = at::zeros_like(p.leaf());
  };
  zero_gradients();
  optimizer.step(0);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::equal(before[i], toy.parameters[i].weight)) << i;
  }
  zero_gradients();
  optimizer.step(0.1);
  const double factor[] = {0.95, 0.975, 1, 0.95};  // b has half the learning rate
  for (size_t i = 0; i < before.size(); ++i) {
    const Parameter& p = toy.parameters[i];
    if (p.carrier || !p.decay || kind_->decoupled_decay) {
      EXPECT_TRUE(at::allclose(before[i] * factor[i], p.weight, 1e-6)) << i;
    } else {
      EXPECT_LT(p.weight.norm().item<float>(), before[i].norm().item<float>()) << i;
    }
  }
}

// A step takes f32 sums of bf16 gradients as it would take the same f32 gradients, clipped alike.
TEST_P(EveryOptimizer, TakesF32Sums) {
  for (const char* projection : {"", "srht", "gaussian"}) {
    for (const bool master : {false, true}) {
      SCOPED_TRACE(cat(projection, master ? " master" : ""));
      const ToyOptions toy{.projection = projection, .period = 2, .type = at::kBFloat16};
      const OptimizerOptions options{.kind = kind_, .weight_decay = 0.1, .master_weights = master};
      OptimizerOptions with_sums = options;
      with_sums.f32_sums = true;
      Toy one(toy), two(toy);
      Optimizer sums(one.pointers(), with_sums), plain(two.pointers(), options);
      for (int64_t step = 0; step < 3; ++step) {
        sums.begin_backward(0.01);
        one.accumulate(step);
        std::vector<at::Tensor> by_hand;
        for (int64_t micro = 0; micro < Toy::kMicroBatches; ++micro) {
          two.accumulate(step, micro);
          for (size_t i = 0; i < two.parameters.size(); ++i) {
            const at::Tensor part = two.parameters[i].leaf().grad().to(at::kFloat);
            micro ? by_hand[i].add_(part) : by_hand.emplace_back(part);
            two.parameters[i].leaf().mutable_grad().reset();
          }
        }
        for (size_t i = 0; i < by_hand.size(); ++i) {
          two.parameters[i].leaf().mutable_grad() = by_hand[i];
        }
        const at::Tensor norm = sums.gradient_norm();
        EXPECT_TRUE(at::equal(norm, plain.gradient_norm()));
        sums.step(0.01, Optimizer::clip_factor(norm, 0.1));
        plain.step(0.01, Optimizer::clip_factor(norm, 0.1));
      }
      expect_equal_weights(one, two);
      for (const ParameterState& s : sums.states()) EXPECT_FALSE(s.gradient().defined());
    }
  }
}

// With the bytes that it has on the CPU.
TEST_P(EveryOptimizer, RunsOnMeta) {
  for (const ProjectionInfo* info : projections()) {
    std::map<std::string, int64_t> bytes[2];
    for (const at::Device device : {at::kCPU, at::kMeta}) {
      const at::TensorOptions options = at::device(device).dtype(at::kBFloat16);
      auto c = std::make_shared<Carrier>();
      c->value = at::zeros({30, 5}, options);
      c->rows = {20, 10};
      c->type = info->name;
      c->in = 20;
      c->rank = 5;
      c->period = 1;
      c->redraw(0, options);
      Parameter p{.name = "w", .weight = at::zeros({30, 20}, options), .carrier = c};
      Parameter q{.name = "q", .weight = at::zeros({7, 20}, options), .hidden = true};
      Parameter b{.name = "b", .weight = at::zeros({7}, options)};
      Optimizer optimizer(
          {&p, &q, &b},
          {.kind = kind_, .weight_decay = 0.1, .master_weights = true, .carry_second = true});
      for (Parameter* x : {&p, &q, &b}) x->leaf().mutable_grad() = at::zeros_like(x->leaf());
      const at::Tensor norm = optimizer.gradient_norm();
      EXPECT_EQ(norm.device(), device);
      optimizer.step(0.1, Optimizer::clip_factor(norm, 1));
      EXPECT_EQ(c->draw, 1);
      bytes[device.is_meta()] = optimizer.bytes();
    }
    EXPECT_EQ(bytes[0], bytes[1]) << info->name;
  }
}

}  // namespace
}  // namespace compact
