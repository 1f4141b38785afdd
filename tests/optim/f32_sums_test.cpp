// SPDX-License-Identifier: Apache-2.0
// Gradients of bf16 parameters summed in f32 over the backward passes of a step.
#include <c10/core/Allocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <memory>
#include <new>

#include "compact/codecs/blocks.h"
#include "tests/optim/toy.h"

namespace compact {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kMicro = 512, kRows = 16, kColumns = 48, kTokens = 8;

// The gradient of (x W^T * g).sum() over independent micro-batches, by autograd; and what it is in
// f64 of the same inputs.
struct Accumulated {
  at::Tensor gradient, exact, sum_of_rounded;
};
Accumulated accumulated(bool f32_sums) {
  Parameter p{.name = "w", .weight = normal({kRows, kColumns}, 1).to(at::kBFloat16)};
  p.weight.requires_grad_(true);
  Optimizer optimizer({&p}, {.f32_sums = f32_sums});
  Accumulated result{.exact = at::zeros({kRows, kColumns}, at::kDouble),
                     .sum_of_rounded = at::zeros({kRows, kColumns})};
  for (int64_t micro = 0; micro < kMicro; ++micro) {
    optimizer.begin_backward(0.01);
    const at::Tensor x = normal({kTokens, kColumns}, derive(2, micro)).to(at::kBFloat16);
    const at::Tensor g = normal({kTokens, kRows}, derive(3, micro)).to(at::kBFloat16);
    torch::autograd::backward({(at::linear(x, p.weight) * g).sum()}, {});
    result.exact += g.to(at::kDouble).t().mm(x.to(at::kDouble));
    result.sum_of_rounded += g.t().mm(x).to(at::kFloat);
    EXPECT_EQ(p.weight.grad().defined(), !f32_sums);
  }
  result.gradient = optimizer.states()[0].gradient().clone();
  return result;
}

double relative_error(const Accumulated& a) {
  return ((a.gradient.to(at::kDouble) - a.exact).norm() / a.exact.norm()).item<double>();
}

// In bf16 each addition rounds; in f32 what is left is the rounding of each micro-batch's own
// gradient, whose errors are independent: 2^-9 / sqrt(3) of the sum, about.
TEST(F32Sums, ErrOfManyMicroBatchesIsThatOfOne) {
  const Accumulated plain = accumulated(false), sums = accumulated(true);
  EXPECT_EQ(plain.gradient.scalar_type(), at::kBFloat16);
  EXPECT_EQ(sums.gradient.scalar_type(), at::kFloat);
  RecordProperty("bf16", std::to_string(relative_error(plain)));
  RecordProperty("f32", std::to_string(relative_error(sums)));
  EXPECT_GT(relative_error(plain), 1.5e-2);
  EXPECT_LT(relative_error(sums), 2e-3);
  EXPECT_TRUE(at::equal(sums.gradient, sums.sum_of_rounded));
}

TEST(F32Sums, OfF32ParametersAreAutograds) {
  Toy toy({});
  Optimizer optimizer(toy.pointers(), {.f32_sums = true});
  optimizer.begin_backward(0.01);
  toy.accumulate(0);
  for (const Parameter& p : toy.parameters) EXPECT_TRUE(p.leaf().grad().defined());
}

TEST(F32Sums, NameWhatIsNotFinite) {
  Toy toy({.projection = "srht", .type = at::kBFloat16});
  Optimizer optimizer(toy.pointers(), {.f32_sums = true});
  optimizer.begin_backward(0.01);
  toy.accumulate(0, 0);
  optimizer.states()[2].sum[3] = NAN;
  EXPECT_EQ(optimizer.nonfinite(optimizer.gradient_norm()), "g");
  toy.accumulate(0, 1);
  EXPECT_EQ(optimizer.nonfinite(optimizer.gradient_norm()), "g");
}

// Somebody else's backward pass, for example one that measures, is autograd's.
TEST(F32Sums, AreOfAStepOnly) {
  Toy toy({.type = at::kBFloat16});
  Optimizer optimizer(toy.pointers(), {.f32_sums = true});
  const auto own = [&] { return toy.parameters[0].leaf().grad().defined(); };
  toy.accumulate(0);
  EXPECT_TRUE(own());
  toy.parameters[0].leaf().mutable_grad().reset();
  optimizer.begin_backward(0.01);
  toy.accumulate(0);
  EXPECT_FALSE(own());
  optimizer.step(0.01);
  toy.accumulate(0);
  EXPECT_TRUE(own());
}

TEST(F32Sums, EndWithTheirOptimizer) {
  Toy toy({.type = at::kBFloat16});
  {
    Optimizer optimizer(toy.pointers(), {.f32_sums = true});
    optimizer.begin_backward(0.01);
  }
  toy.accumulate(0);
  EXPECT_EQ(toy.parameters[0].leaf().grad().scalar_type(), at::kBFloat16);
}

TEST(F32Sums, RefuseWhatGoesPastThem) {
  Toy toy({.type = at::kBFloat16});
  toy.parameters[1].release = true;
  EXPECT_THAT([&] { Optimizer(toy.pointers(), {.f32_sums = true}); },
              ThrowsMessage<InputError>(HasSubstr("`b` is updated inside the backward pass")));
  toy.parameters[1].release = false;
  Optimizer optimizer(toy.pointers(), {.f32_sums = true});
  optimizer.begin_backward(0.01);
  toy.accumulate(0);
  toy.parameters[3].leaf().mutable_grad() = at::zeros_like(toy.parameters[3].weight);
  const std::function<void()> readers[] = {
      [&] { optimizer.step(0.01); }, [&] { optimizer.state(); }, [&] { optimizer.gradient_norm(); },
      [&] { optimizer.nonfinite(at::full({}, NAN)); }};
  for (const auto& read : readers) {
    EXPECT_THAT(read,
                ThrowsMessage<InputError>(HasSubstr("`v` has a gradient beside the f32 sum")));
  }
}

// A backward pass that fails half-way leaves some gradients in sums.
TEST(F32Sums, AreDroppedSoThatAStepCanBeginAnew) {
  Toy toy({.type = at::kBFloat16}), other({.type = at::kBFloat16});
  Optimizer optimizer(toy.pointers(), {.f32_sums = true}),
      whole(other.pointers(), {.f32_sums = true});
  optimizer.begin_backward(0.01);
  toy.accumulate(0, 0);
  optimizer.begin_backward(0.01);
  for (const size_t i : {3, 1}) {
    Toy::add(toy.parameters[i], at::ones_like(toy.parameters[i].weight));
  }
  toy.parameters[0].leaf().mutable_grad() = at::ones_like(toy.parameters[0].weight);
  optimizer.clear_gradients();
  EXPECT_EQ(optimizer.gradient_norm().item<float>(), 0);
  EXPECT_FALSE(toy.parameters[0].leaf().grad().defined());
  optimizer.begin_backward(0.01);
  toy.accumulate(0);
  whole.begin_backward(0.01);
  other.accumulate(0);
  EXPECT_TRUE(at::equal(optimizer.gradient_norm(), whole.gradient_norm()));
  optimizer.step(0.01);
  whole.step(0.01);
  for (size_t i = 0; i < toy.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(toy.parameters[i].weight, other.parameters[i].weight)) << i;
  }
}

// torch's allocator of the CPU, but for one allocation that fails.
class FailingAllocator final : public c10::Allocator {
 public:
  FailingAllocator() { c10::SetAllocator(c10::DeviceType::CPU, this); }
  ~FailingAllocator() override { c10::SetAllocator(c10::DeviceType::CPU, real_); }
  void fail_after(int64_t allocations) { left_ = allocations; }
  at::DataPtr allocate(size_t bytes) override {
    if (left_ >= 0 && left_-- == 0) throw std::bad_alloc();
    return real_->allocate(bytes);
  }
  at::DeleterFnPtr raw_deleter() const override { return real_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    real_->copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* real_ = c10::GetAllocator(c10::DeviceType::CPU);
  int64_t left_ = -1;  // before the one that fails; below 0: none does
};

// Sums of several blocks: a gradient is in one whole or not at all.
TEST(F32Sums, TakeNoPartOfAGradientWithoutMemory) {
  Parameter p{.name = "w", .weight = at::zeros({3, kBlockElements}, at::kBFloat16)};
  Optimizer optimizer({&p}, {.f32_sums = true});
  optimizer.begin_backward(0.01);
  Toy::add(p, at::ones_like(p.weight));
  FailingAllocator memory;
  int64_t failures = 0;
  for (bool failed = true; failed; failures += failed) {
    p.weight.mutable_grad() = at::ones_like(p.weight);
    memory.fail_after(failures);
    try {
      (*torch::autograd::impl::post_acc_grad_hooks(p.weight))(p.weight);
      failed = false;
    } catch (const std::bad_alloc&) {
      EXPECT_TRUE(p.weight.grad().defined()) << failures;
    }
    memory.fail_after(-1);
    const at::Tensor& sum = optimizer.states()[0].sum;
    EXPECT_TRUE(sum.eq(failed ? 1 : 2).all().item<bool>()) << failures;
  }
  EXPECT_GE(failures, 1);
  EXPECT_FALSE(p.weight.grad().defined());
}

// A leaf has one hook, which says when its gradient is made.
TEST(F32Sums, RefuseALeafThatHasAHook) {
  Toy toy({.type = at::kBFloat16});
  const auto make = [&] {
    return std::make_unique<Optimizer>(toy.pointers(), OptimizerOptions{.f32_sums = true});
  };
  auto optimizer = make();
  EXPECT_THAT([&] { optimizer = make(); },
              ThrowsMessage<InputError>(HasSubstr("`a` has a hook on its gradient already")));
  optimizer->begin_backward(0.01);
  toy.accumulate(0);
  for (const Parameter& p : toy.parameters) EXPECT_FALSE(p.leaf().grad().defined());
  optimizer.reset();
  EXPECT_NO_THROW(make());
}

class EmptyHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const at::Tensor&) override {}
};

TEST(F32Sums, LeaveTheHooksOfOthers) {
  Toy toy({.type = at::kBFloat16});
  const at::Tensor& leaf = toy.parameters[1].leaf();
  const EmptyHook* hook = nullptr;
  {
    Optimizer optimizer(toy.pointers(), {.f32_sums = true});
    auto own = std::make_unique<EmptyHook>();
    hook = own.get();
    torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::move(own));
  }
  EXPECT_EQ(torch::autograd::impl::post_acc_grad_hooks(leaf).get(), hook);
  EXPECT_FALSE(torch::autograd::impl::post_acc_grad_hooks(toy.parameters[0].leaf()));
}

// Moments, masters and hooks are those of the tensors that were there when it was made.
TEST(F32Sums, RefuseAWeightPutInAnothersPlace) {
  Toy toy({.type = at::kBFloat16});
  Parameter& b = toy.parameters[1];
  const at::Tensor before = b.weight, other = before.clone();
  {
    Optimizer optimizer(toy.pointers(), {.master_weights = true, .f32_sums = true});
    const OptimizerState state = optimizer.state();
    toy.accumulate(0);
    b.weight = other;
    b.weight.mutable_grad() = at::ones_like(other);
    for (const std::function<void()>& call :
         {std::function<void()>([&] { optimizer.begin_backward(0.01); }),
          std::function<void()>([&] { optimizer.step(0.01); }),
          std::function<void()>([&] { optimizer.load(state); })}) {
      EXPECT_THAT(call, ThrowsMessage<InputError>(HasSubstr("`b` has another weight or carrier")));
    }
    EXPECT_TRUE(at::equal(b.weight, before));
  }
  EXPECT_FALSE(torch::autograd::impl::post_acc_grad_hooks(before));
}

}  // namespace
}  // namespace compact
