// SPDX-License-Identifier: Apache-2.0
#include "compact/models/resnet/resnet.h"
#include "compact/base/named.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <filesystem>

#include "compact/base/check.h"
#include "compact/data/images/images.h"
#include "compact/io/safetensors.h"
#include "compact/ops/scopes/saved_tensors.h"
#include "tests/models/plain_resnet.h"
#include "tests/shared_data.h"

namespace compact {
namespace {

TEST(Resnet, HasTheParametersOfItsPaper) {
  const struct {
    const char* name;
    int64_t count;
  } known[] = {{"resnet18", 11689512}, {"resnet50", 25557032}, {"resnet20", 269722},
               {"resnet32", 464154},   {"resnet44", 658586},   {"resnet56", 853018}};
  for (const auto& [name, count] : known) {
    const Resnet net(named(resnets(), name, "no model").config);
    EXPECT_EQ(net.parameter_count(), count) << name;
  }
  EXPECT_THROW(named(resnets(), "resnet21", "no model"), InputError);
}

TEST(Resnet, MapsImagesToLogits) {
  for (const char* name : {"resnet18", "resnet50", "resnet20"}) {
    const Resnet net(named(resnets(), name, "no model").config);
    const at::Tensor y = net.forward(at::randn({2, 3, 64, 64}), {});
    EXPECT_EQ(y.sizes(), at::IntArrayRef({2, net.config().classes}));
    EXPECT_TRUE(y.isfinite().all().item<bool>());
    EXPECT_THROW(net.forward(at::randn({2, 1, 64, 64}), {}), InputError);
  }
}

// The head reads the mean of the last map above 0.
TEST(Resnet, SegmentsReadWhatTheyReadInAnEvaluation) {
  const Resnet net({.blocks = {1, 1}, .width = 8, .small_images = true, .classes = 5});
  const at::Tensor images = at::randn({2, 3, 16, 16});
  std::vector<at::Tensor> maps;
  std::vector<std::string> names;
  const auto see = [&](const Segment& s, const at::Tensor& x, Weights, const SegmentPass&) {
    names.push_back(s.name());
    maps.push_back(x.detach());
  };
  net.each_segment({images}, at::zeros({2}, at::kLong), {.training = false}, see);
  EXPECT_EQ(names, (std::vector<std::string>{"stem", "layer1.0", "layer2.0", "average"}));
  EXPECT_TRUE(maps[0].equal(images));
  EXPECT_EQ(maps[1].sizes(), at::IntArrayRef({2, 8, 16, 16}));
  EXPECT_EQ(maps[3].sizes(), at::IntArrayRef({2, 16, 8, 8}));
  at::Tensor weight, bias;
  for (const auto& [name, t] : net.named_tensors()) {
    if (name == "linear.weight") weight = t;
    if (name == "linear.bias") bias = t;
  }
  const at::Tensor expected = at::linear(maps[3].relu().mean({2, 3}), weight, bias);
  EXPECT_TRUE(at::allclose(net.forward(images, {.training = false}), expected, 1e-5, 1e-6));
}

TEST(Resnet, EvaluationUsesItsOwnStatistics) {
  const Resnet net(named(resnets(), "resnet20", "no model").config);
  const at::Tensor x = at::randn({4, 3, 32, 32});
  const at::NoGradGuard no_grad;
  const at::Tensor before = net.forward(x, {.training = false});
  EXPECT_TRUE(at::allclose(net.forward(x.slice(0, 0, 1), {.training = false}),
                           before.slice(0, 0, 1), 1e-4, 1e-4));
  net.forward(x, {});
  EXPECT_FALSE(at::allclose(net.forward(x, {.training = false}), before, 1e-4, 1e-4));
}

// The published weights classify 99.9 % of images that they were trained on.
TEST(Resnet, PublishedWeightsClassify) {
  const std::string weights = shared_data("pretrained/resnet20-12fca82f.safetensors");
  const std::string archive = shared_data("vision/cifar10-lossless-4000.bin.gz");
  if (!std::filesystem::exists(weights) || !std::filesystem::exists(archive)) {
    GTEST_SKIP() << "no " << weights << " or " << archive << " (COMPACT_DATA)";
  }
  const Resnet net(named(resnets(), "resnet20", "no model").config);
  const SafetensorsFile file(weights);
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : net.named_tensors()) tensor.copy_(file.read(name));
  const LabelledImages data = read_cifar10(std::vector{archive});
  EXPECT_EQ(data.images.size(0), 4000);
  const at::Tensor mean = at::tensor({.485f, .456f, .406f}).view({1, 3, 1, 1});
  const at::Tensor deviation = at::tensor({.229f, .224f, .225f}).view({1, 3, 1, 1});
  const at::Tensor x = (data.images.slice(0, 0, 1000).to(at::kFloat) / 255 - mean) / deviation;
  const at::Tensor right =
      net.forward(x, {.training = false}).argmax(1).eq(data.labels.slice(0, 0, 1000));
  EXPECT_GE(right.sum().item<int64_t>(), 998);
}

// The tensors that autograd saves of a ResNet-50: distinct storages, parameters excluded.
TEST(Resnet, SavedTensorsAtRestUnderGact) {
  Resnet net(named(resnets(), "resnet50", "no model").config);
  SavedTensorOptions options;
  for (const Parameter* p : net.parameters()) options.parameters.emplace_back(p->name, p->weight);
  const at::Tensor x = at::randn({2, 3, 96, 96});
  const struct {
    const char* preset;
    double smaller;
  } levels[] = {{"gact-l1", 7}, {"gact-l1.1", 3.5}, {"gact-l1.2", 11.5}};
  for (const auto& level : levels) {
    const SavedTensorScope scope(Policy::preset(level.preset), options);
    const at::Tensor loss = PlainResnet(net).forward(x, true).square().mean();
    const SavedTensorReport report = scope.report();
    EXPECT_GT(static_cast<double>(report.bytes()) / static_cast<double>(report.stored()),
              level.smaller)
        << level.preset;
    torch::autograd::backward({loss}, {});
    EXPECT_EQ(scope.live_bytes(), 0);
  }
}

}  // namespace
}  // namespace compact
