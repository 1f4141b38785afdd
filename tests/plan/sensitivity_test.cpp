// SPDX-License-Identifier: Apache-2.0
// Bits chosen from measured sensitivities, on a small ResNet.
#include "compact/plan/sensitivity.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "compact/base/check.h"
#include "compact/ops/scopes/saved_tensors.h"
#include "tests/models/plain_resnet.h"

namespace compact {
namespace {

class Sensitivity : public testing::Test {
 protected:
  Sensitivity() : net_({.blocks = {1, 1, 1}, .width = 8, .small_images = true, .classes = 10}) {
    const auto generator = at::detail::createCPUGenerator(5);
    images_ = at::randn({16, 3, 16, 16}, generator);
    labels_ = at::arange(16).remainder(10);
    for (const Parameter* p : net_.parameters())
      options_.parameters.emplace_back(p->name, p->weight);
    options_.least_elements = 256;
  }

  // Runs forward and backward; running statistics are put back.
  at::Tensor gradient(const Policy& policy, uint64_t noise) {
    std::vector<at::Tensor> before;
    for (const auto& [name, t] : net_.named_tensors()) before.push_back(t.clone());
    options_.noise = noise;
    const SavedTensorScope scope(policy, options_);
    const at::Tensor loss =
        at::cross_entropy_loss(PlainResnet(net_).forward(images_, true), labels_);
    report_ = scope.report();
    torch::autograd::backward({loss}, {});
    std::vector<at::Tensor> flat;
    for (Parameter* p : net_.parameters()) {
      flat.push_back(p->weight.grad().flatten().clone());
      p->weight.mutable_grad().reset();
    }
    size_t i = 0;
    for (auto& [name, t] : net_.named_tensors()) t.copy_(before[i++]);
    return at::cat(flat);
  }
  GradientProbe probe() {
    return [this](const Policy& p, uint64_t noise) { return gradient(p, noise); };
  }
  static Policy uniform(int bits) {
    return Policy::parse(cat("slot * = quantize:bits=", bits, "\n"), "test");
  }
  // E|g' - g|^2 of each tensor in units of uniform_error(bits), which sensitivity_by_groups()
  // estimates: one gradient for each, with that tensor in 4 bits and the others in 8.
  std::vector<double> sensitivity_by_tensor(std::span<const AdaptiveTensor> tensors) {
    const at::Tensor fine = gradient(uniform(8), 7);
    std::vector<double> result;
    for (const AdaptiveTensor& t : tensors) {
      Policy one = uniform(8);
      one.append(Policy::parse(cat("slot ", t.name, " = quantize:bits=4\n"), "test"));
      const double sum = (gradient(one, 7) - fine).square().sum(at::kDouble).item<double>();
      result.push_back(sum / uniform_error(4, t.treatment.bits()->zero_code));
    }
    return result;
  }
  // Mean E|g' - g|^2 over keys, and bytes held.
  double error(const Policy& policy, int keys) {
    const at::Tensor exact = gradient(Policy::parse("slot * = keep\n", "test"), 0);
    double sum = 0;
    for (int k = 0; k < keys; ++k) {
      sum +=
          (gradient(policy, 100 + static_cast<uint64_t>(k)) - exact).square().sum().item<double>();
    }
    return sum / keys;
  }

  Resnet net_;
  at::Tensor images_, labels_;
  SavedTensorOptions options_;
  SavedTensorReport report_;
};

// The quantized tensors of a scope's report that share no memory with an earlier one, in order.
std::vector<AdaptiveTensor> adaptive_tensors(const SavedTensorReport& report, double average) {
  std::vector<AdaptiveTensor> all;
  for (const SavedTensor& t : report.tensors) {
    if (t.shared || !t.treatment.bits()) continue;
    all.push_back({t.name, t.treatment, t.bytes / static_cast<int64_t>(c10::elementSize(t.type)),
                   t.type, average});
  }
  return all;
}

double rank_correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto ranks = [](const std::vector<double>& x) {
    std::vector<size_t> order(x.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(order, [&](size_t i, size_t j) { return x[i] < x[j]; });
    std::vector<double> r(x.size());
    for (size_t i = 0; i < order.size(); ++i) r[order[i]] = static_cast<double>(i);
    return r;
  };
  const auto ra = ranks(a), rb = ranks(b);
  double d = 0;
  for (size_t i = 0; i < a.size(); ++i) d += (ra[i] - rb[i]) * (ra[i] - rb[i]);
  const auto n = static_cast<double>(a.size());
  return 1 - 6 * d / (n * (n * n - 1));
}

TEST_F(Sensitivity, ProbesLeaveNoTrace) {
  const at::Tensor first = gradient(uniform(4), 1);
  gradient(uniform(2), 2);
  EXPECT_TRUE(at::equal(gradient(uniform(4), 1), first));
}

// Adaptive bits in the bytes of 4 and of 2 bits: predicted error below the uniform one, measured
// error, too, and within a factor of 3 of the prediction.
TEST_F(Sensitivity, AdaptiveBitsBeatUniformOnes) {
  gradient(uniform(4), 1);
  const SavedTensorReport report = report_;
  const auto names = adaptive_tensors(report, 4);
  ASSERT_GT(names.size(), 10u);
  const auto by_tensor = sensitivity_by_tensor(names);
  const auto by_groups = sensitivity_by_groups(probe(), names, 8, 7);
  EXPECT_GT(rank_correlation(by_tensor, by_groups), 0.7);
  for (const int bits : {4, 2}) {
    const double plain = error(uniform(bits), 10);
    gradient(uniform(bits), 1);
    const int64_t bytes = report_.stored();
    for (const auto* sensitivity : {&by_tensor, &by_groups}) {
      const BitPlan plan = adaptive_bits(adaptive_tensors(report, bits), *sensitivity);
      EXPECT_LE(plan.allocation.error, plan.uniform_error);
      Policy policy = uniform(bits);
      policy.append(plan.policy);
      const double measured = error(policy, 10);
      EXPECT_LE(report_.stored(), bytes);
      EXPECT_LT(measured, plain) << bits << " " << (sensitivity == &by_groups);
      if (sensitivity == &by_tensor) {
        EXPECT_LT(measured / plan.allocation.error, 3) << bits;
        EXPECT_GT(measured / plan.allocation.error, 1. / 3) << bits;
      }
    }
  }
}

TEST_F(Sensitivity, NewTensorsGetTheRestOfThePolicy) {
  gradient(uniform(4), 1);
  const auto tensors = adaptive_tensors(report_, 3);
  const BitPlan plan = adaptive_bits(tensors, std::vector<double>(tensors.size(), 1.0));
  Policy policy = uniform(4);
  policy.append(plan.policy);
  images_ = at::randn({8, 3, 24, 24});  // other shapes
  labels_ = at::arange(8);
  EXPECT_TRUE(gradient(policy, 1).isfinite().all().item<bool>());
  EXPECT_THROW(adaptive_bits(tensors, std::vector<double>(1)), InputError);
}

}  // namespace
}  // namespace compact
