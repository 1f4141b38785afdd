// SPDX-License-Identifier: Apache-2.0
// Training with carriers equals training in the subspace, and AdamW equals torch's, both written
// independently in Python (_oracle.py).
#include "tests/optim/oracle.h"

#include <gtest/gtest.h>

#include "compact/optim/schedules.h"
#include "tests/optim/toy.h"

namespace compact {
namespace {

constexpr int64_t kSteps = 50;
constexpr double kMaxNorm = 4;

struct Variant {
  std::string name;
  ToyOptions toy;
  OptimizerOptions options;
  double learning_rate;
};

// Trains as a user would and writes down all that the oracle needs.
void record(const OracleFolder& folder, const Variant& v) {
  OracleCase out(folder / v.name);
  Toy toy(v.toy);
  Optimizer optimizer(toy.pointers(), v.options);
  const Carrier* carrier = toy.parameters[0].carrier.get();
  const auto dump_projections = [&] {
    for (size_t i = 0; carrier && i < carrier->projections.size(); ++i) {
      out.tensor(cat("p.", carrier->draw, ".", i), carrier->projections[i]->matrix());
    }
  };
  for (const Parameter& p : toy.parameters) out.tensor(p.name + ".first", p.weight);
  dump_projections();
  const Schedule schedule("cosine", kSteps, 5, 0.1);
  std::vector<double> norms, rates;
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int64_t micro = 0; micro < Toy::kMicroBatches; ++micro) {
      out.tensor(cat("x.", step, ".", micro), Toy::input(step, micro));
      out.tensor(cat("t.", step, ".", micro), Toy::target(step, micro));
    }
    toy.accumulate(step);
    const at::Tensor norm = optimizer.gradient_norm();
    norms.push_back(norm.item<float>());
    rates.push_back(v.learning_rate * schedule.factor(step));
    const int64_t draw = carrier ? carrier->draw : 0;
    optimizer.step(rates.back(), Optimizer::clip_factor(norm, kMaxNorm));
    if (carrier) {
      EXPECT_EQ(carrier->value.count_nonzero().item<int64_t>(), 0);
      if (carrier->draw != draw) dump_projections();
    }
  }
  EXPECT_EQ(carrier ? carrier->draw : 0, carrier ? kSteps / v.toy.period : 0);
  for (const ParameterState& s : optimizer.states()) {
    out.tensor(s.parameter->name + ".last", s.parameter->weight);
    out.tensor(s.parameter->name + ".m", s.m.value());
    if (s.v.defined()) out.tensor(s.parameter->name + ".v", s.v.value());
  }
  out.tensor("norms", at::tensor(norms, at::kDouble));
  out.tensor("rates", at::tensor(rates, at::kDouble));
  const OptimizerOptions& o = v.options;
  out.set("projected", carrier != nullptr);
  out.set("muon", o.kind == &muon_optimizer);
  out.set("share", v.toy.share);
  out.set("carry", v.toy.carry);
  out.set("carry_second", o.carry_second);
  out.set("scale", carrier ? carrier->scale : 1);
  out.set("period", static_cast<double>(v.toy.period));
  const std::vector<int64_t>& parts = toy.parameters[0].parts;
  out.set("parts", static_cast<double>(parts.size()));
  for (size_t i = 0; i < parts.size(); ++i) {
    out.set(cat("part.", i), static_cast<double>(parts[i]));
  }
  out.set("steps", kSteps);
  out.set("max_norm", kMaxNorm);
  out.set("beta1", o.beta1);
  out.set("beta2", o.beta2);
  out.set("eps", o.eps);
  out.set("weight_decay", o.weight_decay);
  out.set("momentum", o.momentum);
  out.set("nesterov", o.nesterov);
  out.set("factor", o.hidden_lr_factor);
  // f32 against f64 over 50 steps, relative to how far the weights went.
  out.set("tolerance", 2e-5);
  out.finish();
}

OptimizerOptions settings(const OptimizerInfo* kind) {
  OptimizerOptions o{.kind = kind, .beta2 = 0.99, .weight_decay = 0.1, .hidden_lr_factor = 0.7};
  return o;
}

class Oracle : public testing::TestWithParam<std::string> {};

TEST_P(Oracle, CarrierTrainingIsSubspaceTraining) {
  if (python().empty()) GTEST_SKIP() << "no Python environment (set COMPACT_PYTHON)";
  const OracleFolder folder;
  for (const OptimizerInfo* kind : {&adamw_optimizer, &muon_optimizer}) {
    const std::string name = kind == &adamw_optimizer ? "adamw" : "muon";
    for (const bool share : {false, true}) {
      for (const bool carry : {false, true}) {
        record(folder, {.name = cat(name, share ? "_shared" : "_own", carry ? "_carried" : "_kept"),
                        .toy = {.projection = GetParam(), .share = share, .carry = carry},
                        .options = settings(kind),
                        .learning_rate = 0.01});
      }
    }
  }
  Variant second{.name = "adamw_second_moment_carried",
                 .toy = {.projection = GetParam()},
                 .options = settings(&adamw_optimizer),
                 .learning_rate = 0.01};
  second.options.carry_second = true;
  record(folder, second);
  EXPECT_EQ(folder.run("subspace"), 0);
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const ProjectionInfo* info : projections()) all.push_back(info->name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Oracle, testing::ValuesIn(names()),
                         [](const auto& info) { return info.param; });

TEST(FullOracle, AdamWAndMuonOfFullMatrices) {
  if (python().empty()) GTEST_SKIP() << "no Python environment (set COMPACT_PYTHON)";
  const OracleFolder folder;
  record(folder, {.name = "adamw", .options = settings(&adamw_optimizer), .learning_rate = 0.01});
  Variant muon{.name = "muon", .options = settings(&muon_optimizer), .learning_rate = 0.01};
  record(folder, muon);
  muon.name = "muon_without_nesterov";
  muon.options.nesterov = false;
  record(folder, muon);
  EXPECT_EQ(folder.run("subspace"), 0);
}

TEST(FullOracle, AdamWIsTorchAdamW) {
  if (python().empty()) GTEST_SKIP() << "no Python environment (set COMPACT_PYTHON)";
  const OracleFolder folder;
  for (const double decay : {0.0, 0.1}) {
    OracleCase out(folder / cat("decay_", decay));
    Parameter p{.name = "w", .weight = normal({37, 11}, 1)};
    out.tensor("first", p.weight);
    const OptimizerOptions o{.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-5, .weight_decay = decay};
    Optimizer optimizer({&p}, o);
    std::vector<at::Tensor> gradients;
    std::vector<double> rates;
    for (int64_t step = 0; step < kSteps; ++step) {
      gradients.push_back(normal({37, 11}, 100 + static_cast<uint64_t>(step), 0.3f) + 0.1);
      rates.push_back(0.1 / static_cast<double>(step + 1));
      p.weight.mutable_grad() = gradients.back();
      optimizer.step(rates.back());
    }
    out.tensor("last", p.weight);
    out.tensor("m", optimizer.states()[0].m.value());
    out.tensor("v", optimizer.states()[0].v.value());
    out.tensor("gradients", at::stack(gradients));
    out.tensor("rates", at::tensor(rates, at::kDouble));
    out.set("beta1", o.beta1);
    out.set("beta2", o.beta2);
    out.set("eps", o.eps);
    out.set("weight_decay", o.weight_decay);
    out.set("tolerance", 1e-5);
    out.finish();
  }
  EXPECT_EQ(folder.run("adamw"), 0);
}

}  // namespace
}  // namespace compact
