// SPDX-License-Identifier: Apache-2.0
// Residual networks of segments beside plain ones: lossless treatments change no bit; pooled inputs
// of convolutions change nothing but these convolutions' own gradients.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <random>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "tests/models/plain_resnet.h"

namespace compact {
namespace {

const ResnetConfig kCifar{.blocks = {2, 2}, .width = 8, .small_images = true, .classes = 5};
const ResnetConfig kBottleneck{.blocks = {2, 1}, .width = 4, .bottleneck = true, .classes = 5};
const ResnetConfig kBasic{.blocks = {1, 2}, .width = 8, .classes = 5};

struct ResnetStep {
  at::Tensor logits;
  std::map<std::string, at::Tensor> gradients, tensors;  // tensors: after the forward pass
  std::vector<SlotBytes> slots;
};

at::Tensor images() { return at::randn({6, 3, 32, 32}, at::detail::createCPUGenerator(1)); }

ResnetStep step_of(const Resnet& net, const std::optional<PlainResnet>& plain = {}) {
  ResnetStep s;
  SegmentReport report;
  s.logits = plain ? plain->forward(images(), true) : net.forward(images(), {.noise = 5}, &report);
  s.slots = report.slots;
  torch::autograd::backward({at::cross_entropy_loss(s.logits, at::arange(6).remainder(5))}, {});
  for (Parameter* p : net.parameters()) {
    s.gradients[p->name] = p->weight.grad().clone();
    p->weight.mutable_grad().reset();
  }
  for (auto& [name, t] : net.named_tensors()) s.tensors[name] = t.clone();
  return s;
}

// In the order of the parameters, which have none afterwards.
std::vector<at::Tensor> taken_gradients(const Resnet& net) {
  std::vector<at::Tensor> all;
  for (Parameter* p : net.parameters()) {
    all.push_back(p->weight.grad());
    p->weight.mutable_grad().reset();
  }
  return all;
}

ResnetStep step_under(const ResnetConfig& config, const std::string& policy) {
  const Resnet net(config, Policy::parse(policy, "test"), {.seed = 3});
  return step_of(net);
}

void expect_same_step(const ResnetStep& a, const ResnetStep& b, const std::string& text) {
  EXPECT_TRUE(a.logits.equal(b.logits)) << text;
  for (const auto& [name, g] : b.gradients)
    EXPECT_TRUE(a.gradients.at(name).equal(g)) << name << text;
  for (const auto& [name, t] : b.tensors) EXPECT_TRUE(a.tensors.at(name).equal(t)) << name << text;
}

// The bytes that a step stores, by slot.
std::map<std::string, SlotBytes> rows_of(const std::string& policy) {
  const Resnet net(kCifar, Policy::parse(policy, "test"), {.seed = 3});
  std::map<std::string, SlotBytes> rows;
  for (const SlotBytes& row : step_of(net).slots) rows[row.name] = row;
  return rows;
}

TEST(ResnetSegments, OffIsThePlainNetworkBitForBit) {
  for (const ResnetConfig& config : {kCifar, kBottleneck, kBasic}) {
    const Resnet plain(config, {}, {.seed = 3});
    expect_same_step(step_under(config, "slot * = keep\n"), step_of(plain, PlainResnet(plain)), "");
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(plain.forward(images(), {.training = false})
                    .equal(PlainResnet(plain).forward(images(), false)));
  }
}

TEST(ResnetSegments, OffIsThePlainNetworkInBfloat16) {
  for (const ResnetConfig& config : {kCifar, kBottleneck, kBasic}) {
    const NetworkOptions options{.dtype = at::kBFloat16, .seed = 3};
    const Resnet plain(config, {}, options), exact(config, Policy::preset("exact"), options);
    const at::Tensor x = images().to(at::kBFloat16);
    const at::Tensor target = at::arange(6).remainder(5);
    const auto gradients = [&](const Resnet& net, const at::Tensor& logits) {
      torch::autograd::backward({at::cross_entropy_loss(logits, target)}, {});
      return taken_gradients(net);
    };
    const auto a = gradients(plain, PlainResnet(plain).forward(x, true));
    for (const Resnet* net : {&plain, &exact}) {
      const auto b = gradients(*net, net->forward(x, {}));
      for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
    }
  }
}

// A graph that is kept gives the same gradients again; one that is not says so.
TEST(ResnetSegments, ASecondBackwardPass) {
  for (const char* preset : {"exact", "pool", "pool-quant"}) {
    const Resnet net(kBottleneck, Policy::preset(preset), {.seed = 3});
    const at::Tensor loss =
        at::cross_entropy_loss(net.forward(images(), {}), at::arange(6).remainder(5));
    const auto gradients = [&](bool keep) {
      torch::autograd::backward({loss}, {}, keep);
      return taken_gradients(net);
    };
    const auto a = gradients(true), b = gradients(false);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << preset << i;
    EXPECT_THROW(gradients(false), std::exception);
  }
}

// With the running statistics, which then pass gradients as constants.
TEST(ResnetSegments, GradientsOfAnEvaluation) {
  for (const ResnetConfig& config : {kCifar, kBottleneck}) {
    const Resnet net(config, Policy::preset("exact"), {.seed = 3});
    const at::Tensor target = at::arange(6).remainder(5);
    const auto gradients = [&](const at::Tensor& logits) {
      torch::autograd::backward({at::cross_entropy_loss(logits, target)}, {});
      return taken_gradients(net);
    };
    const auto a = gradients(PlainResnet(net).forward(images(), false)),
               b = gradients(net.forward(images(), {.training = false}));
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
  }
}

// Slots that may be rebuilt, at random; others kept or moved.
TEST(ResnetSegments, LosslessAssignmentsChangeNoBit) {
  std::mt19937 random(11);
  for (const ResnetConfig& config : {kCifar, kBottleneck, kBasic}) {
    const ResnetStep off = step_under(config, "slot * = keep\n");
    const Resnet named(config, {}, {.seed = 3});
    const std::vector<SlotBytes> slots = step_of(named).slots;
    for (int round = 0; round < 20; ++round) {
      std::string policy;
      for (const SlotBytes& row : slots) {
        const bool input = row.name.ends_with(".input");
        if (row.name.ends_with(".extras") || row.name.find('~') != std::string::npos ||
            row.name.starts_with("fc") || row.name.starts_with("linear")) {
          continue;
        }
        const char* const ways[] = {"keep", "offload", input ? "keep" : "recompute",
                                    input ? "offload" : "recompute"};
        policy += cat("slot ", row.name, " = ", ways[random() % 4], "\n");
      }
      expect_same_step(step_under(config, policy), off, "\n" + policy);
    }
  }
}

TEST(ResnetSegments, WhatNobodyKeepsCannotBeRebuilt) {
  EXPECT_THROW(step_under(kCifar, "slot layer1.1.input = recompute\n"), InputError);
  EXPECT_THROW(step_under(kCifar, "slot stem.input = recompute\n"), InputError);
  EXPECT_THROW(step_under(kCifar, "slot layer1.0.relu1 = mask:of=sign\n"), InputError);
  const auto loss_under = [](const Policy& policy) {
    return Resnet(kCifar, policy).loss({images()}, at::arange(6).remainder(5), {});
  };
  EXPECT_THROW(loss_under(Policy::parse("slot layer1.1.relu2 = keep\n", "test")), InputError);
  EXPECT_THROW(loss_under(Policy::preset("recompute")), InputError);  // of transformers
  EXPECT_NO_THROW(loss_under(Policy::parse("slot linear.* = quantize:bits=8\n", "test")));
}

TEST(ResnetSegments, PresetsWithoutErrorChangeNoBit) {
  for (const ResnetConfig& config : {kCifar, kBottleneck, kBasic}) {
    const Resnet exact(config, Policy::preset("exact"), {.seed = 3});
    expect_same_step(step_of(exact), step_under(config, "slot * = keep\n"), "exact");
  }
}

// The backward pass rebuilds in the mode of its own forward pass, not of one between.
TEST(ResnetSegments, AnEvaluationBetweenChangesNoBit) {
  const Resnet off(kCifar, {}, {.seed = 3}), exact(kCifar, Policy::preset("exact"), {.seed = 3});
  const auto gradients = [](const Resnet& net) {
    const at::Tensor loss = net.loss({images()}, at::arange(6).remainder(5), {});
    net.score({images()}, at::arange(6).remainder(5));
    torch::autograd::backward({loss}, {});
    return taken_gradients(net);
  };
  const std::vector<at::Tensor> a = gradients(off), b = gradients(exact);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
}

// A ReLU that is rebuilt from what was rounded, near or far, keeps its signs; one whose output
// nobody reads needs no more than signs.
TEST(ResnetSegments, SignsAreThoseOfTheForwardPass) {
  const auto rows = rows_of(
      "slot layer1.0.input = quantize:bits=8\nslot layer1.0.{conv1,relu1} = recompute\n"
      "slot average.input = quantize:bits=1\n");
  EXPECT_EQ(rows.at("layer1.0.extras").stored, 2 * 2 * 4 * 8 + 6 * 8 * 32 * 32 / 8);
  EXPECT_EQ(rows.at("average.input").stored, 6 * 16 * 16 * 16 / 8);
  for (const char* policy : {"slot * = quantize:bits=1\n", "slot *.input = pool:size=2\n"}) {
    EXPECT_NO_THROW(step_under(kBasic, policy)) << policy;
  }
  // One value a channel has no variance.
  const Resnet basic(kBasic);
  EXPECT_THROW(basic.forward(at::randn({1, 3, 32, 32}).slice(2, 0, 8).slice(3, 0, 8), {}),
               InputError);
}

// All gradients but those of the convolutions whose inputs are pooled: exact.
TEST(ResnetSegments, PoolingLeavesAllOtherGradientsExact) {
  for (const ResnetConfig& config : {kCifar, kBottleneck, kBasic}) {
    const ResnetStep off = step_under(config, "slot * = keep\n");
    for (const char* how : {"pool:size=2", "pool:size=3", "pool:size=2+quantize:bits=4"}) {
      const ResnetStep pooled =
          step_under(config, cat("slot {layer*.input,*.relu*} = ", how, "\n",
                                 config.small_images ? "" : "slot stem.relu = recompute\n"));
      EXPECT_TRUE(pooled.logits.equal(off.logits));
      int changed = 0;
      for (const auto& [name, g] : off.gradients) {
        const bool conv = g.dim() == 4 && !name.starts_with("conv1");
        if (conv) {
          changed += !pooled.gradients.at(name).equal(g);
        } else {
          EXPECT_TRUE(pooled.gradients.at(name).equal(g)) << name << " " << how;
        }
      }
      EXPECT_GE(changed, 4) << how;
      for (const auto& [name, t] : off.tensors)
        EXPECT_TRUE(pooled.tensors.at(name).equal(t)) << name;
    }
  }
}

// Channels whose sizes differ as those of trained networks do: norms divide each by its own.
TEST(ResnetSegments, RoundedGradientsAreNearHoweverChannelsDiffer) {
  const auto gradients_under = [](const ResnetConfig& config, const std::string& policy) {
    const Resnet net(config, Policy::parse(policy, "test"), {.seed = 3});
    const at::Generator generator = at::detail::createCPUGenerator(4);
    for (Parameter* p : net.parameters()) {
      if (p->weight.dim() != 4) continue;
      const at::Tensor sizes = at::randn({p->weight.size(0), 1, 1, 1}, generator).mul(1.5).exp();
      const at::NoGradGuard no_grad;
      p->weight.mul_(sizes);
    }
    return step_of(net).gradients;
  };
  for (const ResnetConfig& config : {kCifar, kBottleneck, kBasic}) {
    const auto exact = gradients_under(config, "slot * = keep\n");
    for (const auto& [bits, bound] : {std::pair{8, 0.1}, {4, 1.5}}) {
      const auto rounded_by = [&](const char* more) {
        return gradients_under(
            config, cat("slot * = keep\nslot {stem.conv,layer*.conv*,layer*.downsample} = ",
                        "quantize:bits=", bits, more, "\n"));
      };
      const auto apart = rounded_by(""), mixed = rounded_by(",along=memory");
      double worst = 0;
      for (const auto& [name, g] : exact) {
        const double norm = g.norm().item<double>() + 1e-6;
        EXPECT_LE((apart.at(name) - g).norm().item<double>(), bound * norm)
            << name << " in " << bits;
        worst = std::max(worst, (mixed.at(name) - g).norm().item<double>() / norm);
      }
      EXPECT_GT(worst, 2 * bound) << "in groups of several channels";
    }
  }
}

// The stored bytes of each slot, exactly.
TEST(ResnetSegments, BytesAreThoseOfTheTreatments) {
  const auto rows = rows_of(
      "slot * = keep\nslot layer1.0.relu1 = recompute\nslot layer1.1.input = pool:size=2\n"
      "slot layer1.1.conv1 = quantize:bits=4\n");
  const int64_t map = 6 * 8 * 32 * 32;
  EXPECT_EQ(rows.at("layer1.0.conv1").stored, 4 * map);
  EXPECT_EQ(rows.at("layer1.0.relu1").stored, 0);
  EXPECT_EQ(rows.at("layer1.0.relu1").if_kept, 4 * map);
  EXPECT_EQ(rows.at("layer1.1.input").stored, map);
  EXPECT_EQ(rows.at("layer1.1.conv1").stored, map / 2 + map / 256 * 4);
  // Mean and 1/deviation of two norms; the mask of the pooled input.
  EXPECT_EQ(rows.at("layer1.0.extras").stored, 2 * 2 * 4 * 8);
  EXPECT_EQ(rows.at("layer1.1.extras").stored, 2 * 2 * 4 * 8 + map / 8);
}

}  // namespace
}  // namespace compact
