// SPDX-License-Identifier: Apache-2.0
// One network that several threads run at once.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <thread>

#include "compact/models/encoder/encoder.h"
#include "tests/models/tiny_encoder.h"
#include "tests/models/tiny_llama.h"

namespace compact {
namespace {

// Loss and gradients of all leaves, which stay as they are.
std::vector<at::Tensor> pass_of(const Network& net, const Tensors& inputs, const at::Tensor& target,
                                uint64_t noise) {
  const at::Tensor loss = net.loss(inputs, target, {.noise = noise});
  std::vector<at::Tensor> leaves;
  for (const Parameter* p : net.parameters()) leaves.push_back(p->leaf());
  std::vector<at::Tensor> all = torch::autograd::grad({loss}, leaves);
  all.push_back(loss.detach());
  return all;
}

void expect_same_in_threads(const Network& net, const Tensors& inputs, const at::Tensor& target) {
  constexpr uint64_t kThreads = 4, kRounds = 5;
  std::vector<std::vector<at::Tensor>> want, got(kThreads);
  for (uint64_t i = 0; i < kThreads; ++i) want.push_back(pass_of(net, inputs, target, i));
  EXPECT_FALSE(same_bits(want[0][2], want[1][2])) << "the noise changes nothing";
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (uint64_t round = 0; round < kRounds; ++round) got[i] = pass_of(net, inputs, target, i);
    });
  }
  for (std::thread& t : threads) t.join();
  for (uint64_t i = 0; i < kThreads; ++i) {
    for (size_t k = 0; k < want[i].size(); ++k) {
      EXPECT_TRUE(same_bits(got[i][k], want[i][k])) << i << " " << k;
    }
  }
}

TEST(Threads, RunALlamaAtOnce) {
  const Llama model(shape(), policy("gact-l1"), {.max_length = 16});
  expect_same_in_threads(model, {ids()}, targets());
}

TEST(Threads, RunAnEncoderAtOnce) {
  const Encoder model(tiny_encoder(), policy("gact-l1"), {});
  const at::Tensor words = at::arange(40, at::kLong).view({5, 8});
  expect_same_in_threads(model, {words, at::zeros_like(words), at::full({5}, 8, at::kLong)},
                         at::arange(5).remainder(3));
}

}  // namespace
}  // namespace compact
