// SPDX-License-Identifier: Apache-2.0
// Compares a pass under a scope that rebuilds with the plain one, in bits.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <optional>
#include <vector>

#include "compact/base/check.h"
#include "tests/ops/saved_tensors.h"

namespace compact {

inline const Policy kRebuild = Policy::parse("slot role:cheap = recompute\n", "test");

// The same within so many bytes, or such a part, as "40%".
inline Policy within(const std::string& budget) {
  return Policy::parse(
      cat("slot role:cheap = recompute\nslot role:heavy = recompute:budget=", budget, "\n"),
      "test");
}

inline at::Tensor trained(at::IntArrayRef sizes, uint64_t seed) {
  return normal_tensor(sizes, seed).mul_(0.3).requires_grad_();
}

// A loss and the leaves whose gradients are compared.
struct Graph {
  at::Tensor loss;
  std::vector<at::Tensor> leaves;
};

inline std::vector<at::Tensor> values_of(const Graph& graph) {
  std::vector<at::Tensor> all{graph.loss.detach().clone()};
  for (const at::Tensor& leaf : graph.leaves) {
    all.push_back(leaf.grad().defined() ? leaf.grad().clone() : at::Tensor());
  }
  return all;
}

struct Held {
  int64_t plain = 0, held = 0;  // bytes of saved tensors, as they are and as they are held
  int64_t span = 0;             // that are rebuilt at a time under a budget
};

// `forward` makes new leaves of the same values every time; `after`: between scope and backward.
inline Held expect_same_bits(const std::function<Graph()>& forward,
                             const std::function<void(const Graph&)>& after = {},
                             const Policy& policy = kRebuild) {
  at::manual_seed(7);
  const Graph plain = forward();
  if (after) after(plain);
  torch::autograd::backward({plain.loss}, {});
  const std::vector<at::Tensor> want = values_of(plain);
  at::manual_seed(7);
  Graph graph;
  Held held;
  {
    SavedTensorScope scope(policy, {.parameters = {}, .least_elements = 0});
    graph = forward();
    const SavedTensorReport report = scope.report();
    held = {report.bytes(), report.stored(), report.span};
    EXPECT_EQ(scope.live_bytes(), held.held);
  }
  if (after) after(graph);
  torch::autograd::backward({graph.loss}, {});
  const std::vector<at::Tensor> got = values_of(graph);
  EXPECT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].defined(), want[i].defined()) << i;
    if (want[i].defined()) {
      EXPECT_TRUE(at::equal(got[i].nan_to_num(), want[i].nan_to_num())) << i;
    }
  }
  return held;
}

}  // namespace compact
