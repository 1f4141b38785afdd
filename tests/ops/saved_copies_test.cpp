// SPDX-License-Identifier: Apache-2.0
// Copies of parameters in another type, as autocast makes them: held as the parameter, or not.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "compact/ops/memory/memory.h"
#include "tests/ops/saved_tensors.h"

namespace compact {
namespace {

// What autocast makes of a weight is made again from it.
TEST(SavedTensors, CopiesOfParametersAreNotHeld) {
  install_counting_allocator();
  const at::Tensor w = normal_tensor({64, 256}, 1).requires_grad_(),
                   frozen = normal_tensor({64, 64}, 2), x = normal_tensor({32, 256}, 3);
  const auto forward = [&] {
    const at::Tensor y = at::mm(x.to(at::kBFloat16), w.to(at::kBFloat16).t());
    const at::Tensor z = at::mm(y, frozen.t().to(at::kBFloat16));
    return at::mm(z, z.t()).sum();
  };
  const auto gradient = [&](const at::Tensor& loss) {
    torch::autograd::backward({loss}, {});
    const at::Tensor g = w.grad().clone();
    w.mutable_grad().reset();
    return g;
  };
  const at::Tensor want = gradient(forward());
  for (const bool named : {true, false}) {
    SavedTensorOptions options{.least_elements = 1};
    if (named) options.parameters = {{"w", w}, {"frozen", frozen}};
    SavedTensorScope scope(kKeep, options);
    const int64_t before = live_bytes(at::kCPU);
    const at::Tensor loss = forward();
    // x and z; a frozen weight that nobody named is as any other tensor.
    const int64_t held = 2 * (32 * 256 + 32 * 64) + (named ? 0 : 2 * 64 * 64);
    EXPECT_EQ(live_bytes(at::kCPU) - before, held + 2);  // and the sum
    EXPECT_EQ(scope.report().stored(), held);
    if (named) {
      EXPECT_TRUE(find(scope.report(), "w.mm.input"));
      EXPECT_TRUE(find(scope.report(), "frozen.mm.input1"));
    }
    EXPECT_TRUE(at::equal(gradient(loss), want));
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
  SavedTensorScope scope(quantized(2), {.least_elements = 1});
  const at::Tensor loss = at::mm(x, w.to(at::kBFloat16)).sum();
  {
    const at::NoGradGuard no_grad;
    w.mul_(2);
  }
  EXPECT_THROW(torch::autograd::backward({loss}, {}), c10::Error);
}

// A forward pass may change a buffer: what was copied before is the copy's own.
TEST(SavedTensors, CopiesOfBuffersAreKept) {
  const at::Tensor buffer = normal_tensor({64, 64}, 1),
                   x = normal_tensor({64, 64}, 2).to(at::kBFloat16).requires_grad_();
  SavedTensorScope scope(quantized(2), {.buffers = {{"mean", buffer}}, .least_elements = 1});
  const at::Tensor copy = buffer.to(at::kBFloat16), loss = at::mm(x, copy).sum();
  buffer.mul_(2);
  torch::autograd::backward({loss}, {});
  EXPECT_TRUE(at::equal(x.grad(), at::mm(at::ones_like(x), copy.t())));
  const SavedTensorReport report = scope.report();
  const SavedTensor* row = find(report, "mean.mm.input1");
  ASSERT_TRUE(row);
  EXPECT_EQ(row->treatment.text(), "keep");
  EXPECT_EQ(row->stored, 2 * 64 * 64);
}

}  // namespace
}  // namespace compact
