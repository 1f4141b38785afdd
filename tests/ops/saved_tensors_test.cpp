// SPDX-License-Identifier: Apache-2.0
// Saved tensors of plain ATen networks, held by codecs.
#include "compact/ops/scopes/saved_tensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <memory>
#include <thread>

#include "compact/base/check.h"
#include "tests/ops/saved_tensors.h"

namespace compact {
namespace {

// conv, batch norm, ReLU, max pool, conv, ReLU, linear: what a small image network saves.
struct Network {
  at::Tensor conv1 = leaf({8, 3, 3, 3}, 1), scale = leaf({8}, 2), shift = leaf({8}, 3),
             conv2 = leaf({16, 8, 3, 3}, 4), linear = leaf({10, 256}, 5);
  at::Tensor x = normal_tensor({4, 3, 16, 16}, 6);

  static at::Tensor leaf(at::IntArrayRef sizes, uint64_t seed) {
    return (normal_tensor(sizes, seed) * 0.3).requires_grad_();
  }
  std::vector<std::pair<std::string, at::Tensor>> parameters() const {
    return {{"conv1.weight", conv1},
            {"bn.weight", scale},
            {"bn.bias", shift},
            {"conv2.weight", conv2},
            {"fc.weight", linear}};
  }
  at::Tensor forward() const {
    at::Tensor h = at::conv2d(x, conv1, {}, 1, 1);
    h = at::batch_norm(h, scale, shift, {}, {}, true, 0.1, 1e-5, false);
    h = at::relu(h);
    h = at::max_pool2d(h, 2);
    h = at::conv2d(h, conv2, {}, 2, 1);
    at::relu_(h);
    return at::linear(h.flatten(1), linear).square().mean();
  }
  std::vector<at::Tensor> gradients() {
    std::vector<at::Tensor> all;
    for (const auto& [name, p] : parameters()) {
      all.push_back(p.grad().clone());
      at::Tensor(p).mutable_grad().reset();
    }
    return all;
  }
};

void expect_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

TEST(SavedTensors, LosslessOnesChangeNoBit) {
  Network n;
  torch::autograd::backward({n.forward()}, {});
  const auto want = n.gradients();
  for (const bool lossless : {false, true}) {
    const Policy signs = Policy::parse("slot *.relu.* = mask:of=sign\n", "test");
    SavedTensorScope scope(
        lossless ? signs : kKeep,
        {.parameters = n.parameters(), .least_elements = 1, .lossless = lossless});
    torch::autograd::backward({n.forward()}, {});
    expect_same(n.gradients(), want);
    const SavedTensorReport report = scope.report();
    if (!lossless) {
      EXPECT_EQ(report.bytes(), report.stored());
      continue;
    }
    const SavedTensor* sign = find(report, "bn~1.relu.result");
    ASSERT_TRUE(sign);
    EXPECT_EQ(sign->treatment.text(), "mask:of=sign");
    EXPECT_EQ(sign->stored, 4 * 8 * 16 * 16 / 8);
    const SavedTensor* index = find(report, "bn~2.max_pool2d_with_indices.result");
    ASSERT_TRUE(index);
    EXPECT_EQ(index->treatment.text(), "index:limit=256");
    EXPECT_EQ(index->stored, index->bytes / 8);
  }
}

// Its noise is filled after it is saved.
TEST(SavedTensors, NoiseOfRreluIsNotReadTooEarly) {
  const auto gradient = [](bool scoped) {
    std::optional<SavedTensorScope> scope;
    if (scoped) scope.emplace(kKeep, SavedTensorOptions{.least_elements = 1, .lossless = true});
    at::manual_seed(5);
    const at::Tensor x = at::linspace(-3, 3, 4096).requires_grad_(true);
    at::rrelu(x, 0.1, 0.4, true).sum().backward();
    return x.grad();
  };
  EXPECT_TRUE(at::equal(gradient(true), gradient(false)));
}

TEST(SavedTensors, PatternsChooseByName) {
  Network n;
  SavedTensorScope scope(
      Policy::parse("slot * = quantize:bits=2\nslot conv2.* = quantize:bits=8\nslot fc.* = keep\n",
                    "test"),
      {.parameters = n.parameters(), .least_elements = 1});
  n.forward();
  const SavedTensorReport report = scope.report();
  EXPECT_EQ(find(report, "conv1.convolution.input")->treatment.text(), "quantize:bits=2");
  EXPECT_EQ(find(report, "conv2.convolution.input")->treatment.text(), "quantize:bits=8");
}

// Whoever asks for the tensor itself does not get what another left of it.
TEST(SavedTensors, KeptOnesAreNotReadFromCodes) {
  const at::Tensor w = normal_tensor({256, 8}, 1).requires_grad_(),
                   h = normal_tensor({32, 256}, 2).requires_grad_();
  SavedTensorScope scope(Policy::parse("slot * = quantize:bits=2\nslot fc.* = keep\n", "test"),
                         {.parameters = {{"fc.weight", w}}, .least_elements = 1});
  const at::Tensor y = at::relu(h * 1.0);
  torch::autograd::backward({at::mm(y, w).sum()}, {});
  EXPECT_TRUE(at::allclose(w.grad(), y.detach().sum(0).unsqueeze(1).expand({256, 8}), 1e-5, 1e-5));
  const SavedTensorReport report = scope.report();
  const SavedTensor* input = find(report, "fc.mm.input");
  ASSERT_TRUE(input);
  EXPECT_EQ(input->treatment.text(), "keep");
}

TEST(SavedTensors, StatisticsAndRepeatedElementsAreKept) {
  const at::Tensor w = normal_tensor({64}, 1).requires_grad_(),
                   x = normal_tensor({2048, 64}, 2).requires_grad_();
  SavedTensorScope scope(quantized(2), {.least_elements = 16});
  at::layer_norm(x * 1.0, {64}, w);
  at::log_softmax(x * 1.0, 1);
  at::mul(x, normal_tensor({64}, 3).expand({2048, 64}));
  at::mm(x.to_sparse(), normal_tensor({64, 4}, 4).requires_grad_());
  for (const SavedTensor& t : scope.report().tensors) {
    const bool statistic = t.name.find("layer_norm.result") != std::string::npos ||
                           t.name.find("log_softmax.result") != std::string::npos ||
                           t.name.find("mul.input1") != std::string::npos;
    if (statistic) {
      EXPECT_EQ(t.treatment.text(), "keep") << t.name;
    }
  }
}

TEST(SavedTensors, ScopesMayEndInAnyOrder) {
  auto first = std::make_unique<SavedTensorScope>(kKeep);
  auto second =
      std::make_unique<SavedTensorScope>(quantized(4), SavedTensorOptions{.least_elements = 1});
  first.reset();
  Network n;
  n.forward();
  EXPECT_FALSE(second->report().tensors.empty());
  second.reset();
  torch::autograd::backward({n.forward()}, {});
}

// An address that is used again after its tensor is gone must not be taken for the tensor.
TEST(SavedTensors, FreedMemoryIsNotMistaken) {
  const at::Tensor w = normal_tensor({64, 64}, 1).requires_grad_();
  std::vector<at::Tensor> outputs, exact;
  SavedTensorScope scope(quantized(8), {.least_elements = 1});
  for (uint64_t i = 0; i < 20; ++i) {
    const at::Tensor x = normal_tensor({64, 64}, 10 + i);  // gone after this round: only codes stay
    outputs.push_back(at::mm(x, w).sum());
    exact.push_back(x.sum(0).unsqueeze(1).expand({64, 64}));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    torch::autograd::backward({outputs[i]}, {});
    EXPECT_TRUE(at::allclose(w.grad(), exact[i], 0, 1.0)) << i;
    w.mutable_grad().reset();
  }
}

TEST(SavedTensors, ParametersStayAsTheyAre) {
  const at::Tensor w = normal_tensor({64, 64}, 1).requires_grad_(),
                   x = normal_tensor({32, 64}, 2).requires_grad_();
  SavedTensorScope scope(quantized(1), {.least_elements = 1});
  // A view, a cast, a tied use.
  at::mm(x * 1.0, w.t());
  at::mm((x * 1.0).to(at::kBFloat16), w.to(at::kBFloat16));
  for (const SavedTensor& t : scope.report().tensors) {
    if (t.sizes == std::vector<int64_t>{64, 64}) {
      EXPECT_TRUE(t.parameter) << t.name;
    }
  }
}

TEST(SavedTensors, CopiesThatDifferFromTheirParameterAreKept) {
  const at::Tensor w = normal_tensor({64, 64}, 1).requires_grad_(),
                   x = normal_tensor({64, 64}, 2).to(at::kBFloat16).requires_grad_();
  for (const bool change_copy : {true, false}) {
    SavedTensorScope scope(quantized(2), {.least_elements = 1});
    const at::Tensor copy = w.to(at::kBFloat16);
    {
      const at::NoGradGuard no_grad;
      (change_copy ? copy : w).mul_(2);
    }
    const at::Tensor want = at::mm(at::ones_like(x), copy.detach().t()), loss = at::mm(x, copy);
    torch::autograd::backward({loss.sum()}, {});
    EXPECT_TRUE(at::equal(x.grad(), want));
    x.mutable_grad().reset();
  }
}

TEST(SavedTensors, ScopesNestAndEnd) {
  Network n;
  const auto forward = [&] { return n.forward(); };
  SavedTensorScope outer(quantized(4), {.least_elements = 1});
  {
    SavedTensorScope inner(kKeep, {.least_elements = 1});
    forward();
    EXPECT_FALSE(inner.report().tensors.empty());
  }
  EXPECT_TRUE(outer.report().tensors.empty());
  try {
    SavedTensorScope inner(kKeep);
    throw std::runtime_error("inside forward");
  } catch (const std::runtime_error&) {
  }
  forward();
  const size_t count = outer.report().tensors.size();
  EXPECT_GT(count, 0u);
  {
    const at::NoGradGuard no_grad;
    forward();
  }
  std::thread other([&] { forward(); });  // no scope of its own
  other.join();
  EXPECT_EQ(outer.report().tensors.size(), count);
}

TEST(SavedTensors, RefusesTreatmentsOfSegments) {
  Network n;
  for (const char* treatment : {"recompute", "quantize:bits=4,along=last"}) {
    SavedTensorScope scope(Policy::parse(cat("slot * = ", treatment, "\n"), "test"),
                           {.least_elements = 1});
    EXPECT_THROW(n.forward(), InputError) << treatment;
  }
}

TEST(SavedTensors, NamesTheTensorThatACodecDoesNotTake) {
  Network n;
  SavedTensorScope scope(Policy::parse("slot *input = mask\n", "test"), {.least_elements = 1});
  EXPECT_THAT([&] { n.forward(); },
              testing::ThrowsMessage<InputError>(testing::StartsWith("slot `")));
}

}  // namespace
}  // namespace compact
