// SPDX-License-Identifier: Apache-2.0
// Random small networks of plain operations, rebuilt: every bit as without a scope.
#include <ATen/Parallel.h>

#include <random>

#include "tests/ops/rebuild.h"

namespace compact {
namespace {

// Makes the same network of the same number every time: tensors [8, 12] and their views.
class RandomNetwork {
 public:
  explicit RandomNetwork(uint64_t number) : random_(number), number_(number) {}

  Graph forward() {
    for (uint64_t i = 0; i < 3; ++i) leaves_.push_back(trained({12, 12}, 100 * number_ + i));
    leaves_.push_back(trained({12}, 100 * number_ + 3));
    buffer_ = normal_tensor({12}, 100 * number_ + 4);
    at::Tensor x = normal_tensor({8, 12}, 100 * number_ + 5);
    all_ = {at::mm(x, leaves_[0]), x};
    const uint64_t steps = 4 + below(12);
    for (uint64_t i = 0; i < steps; ++i) {
      at::Tensor y = step(any());
      // A write in place to a saved tensor raises in plain PyTorch.
      if (y.sizes() == at::IntArrayRef({8, 12})) all_.push_back(y);
    }
    at::Tensor loss = all_.back().to(at::kFloat).square().mean();
    for (const at::Tensor& t : all_) loss = loss + t.to(at::kFloat).tanh().sum() * 0.01;
    for (const at::Tensor& leaf : leaves_) loss = loss + leaf.sum() * 1e-3;
    return {loss, leaves_};
  }

 private:
  uint64_t below(uint64_t n) { return random_() % n; }
  at::Tensor any() { return all_[below(all_.size())]; }
  const at::Tensor& weight() { return leaves_[below(3)]; }

  at::Tensor step(const at::Tensor& x) {
    switch (below(26)) {
      case 0:
        return at::gelu(x);
      case 1:
        return at::silu(x) * any();
      case 2:
        return at::mm(x.to(at::kFloat), weight());
      case 3:
        return x + any();
      case 4:
        return at::layer_norm(x.to(at::kFloat), {12}, leaves_[3]);
      case 5:
        return at::dropout(x, 0.4, true);
      case 6:
        return x.to(at::kBFloat16);
      case 7:
        return x.detach() * any();
      case 8: {  // halves that are written
        at::Tensor y = x * 1.5;
        const auto parts = at::unsafe_chunk(y, 2, 1);
        at::Tensor a = parts[0], b = parts[1];
        a.sigmoid_(), b.tanh_();
        return at::cat({b * a, a + 1}, 1);
      }
      case 9: {  // written before anybody saves it
        at::Tensor y = x + leaves_[3];
        y.mul_(2).add_(1);
        return at::sigmoid(y);
      }
      case 10: {  // written after something was made of it
        at::Tensor y = x * 3;
        at::Tensor z = at::sigmoid(y.to(at::kFloat) + leaves_[3]);
        y.add_(1);
        return z * y;
      }
      case 11: {  // one row is written
        at::Tensor y = x.clone();
        y.select(0, 2).mul_(0.5);
        return y.exp().clamp(-2, 2);
      }
      case 12:
        return at::relu(x);
      case 13: {
        at::Tensor y = x - any();
        return y.relu_();
      }
      case 14:
        return at::softmax(x.to(at::kFloat), 1);
      case 15:
        return x.t().contiguous().t() * 2;
      case 16: {
        const at::NoGradGuard no_grad;
        return at::exp(x.clamp(-1, 1) * 0.3);
      }
      case 17:
        return at::where(x > 0, x, any() * 0.1);
      case 18:
        return x.narrow(1, 0, 6).repeat({1, 2});
      case 19:
        return at::index_select(x, 0, at::randperm(8));
      case 20: {  // a buffer changes while it is read
        at::Tensor y = at::sigmoid(x + buffer_);
        buffer_.mul_(0.9);
        return y + buffer_;
      }
      case 21:
        return (x * at::sigmoid(leaves_[3])).square().sqrt();
      case 22: {  // through another version
        at::Tensor y = (x * 0.5).to(at::kFloat);
        at::Tensor z = at::cos(y.exp() * 0.1);
        y.variable_data().add_(1);
        return z;
      }
      case 23:
        return x / (any().abs() + 1);
      case 24:
        return at::rrelu(x.to(at::kFloat), 0.1, 0.4, true);
      default:
        return at::stack({x, any().to(x.scalar_type())}, 0).mean(0);
    }
  }

  std::mt19937_64 random_;
  uint64_t number_;
  std::vector<at::Tensor> all_, leaves_;
  at::Tensor buffer_;
};

TEST(RandomNetworks, EveryBitAsWithoutAScope) {
  Held sum;
  for (uint64_t number = 0; number < 400; ++number) {
    const Held held = expect_same_bits([&] { return RandomNetwork(number).forward(); });
    EXPECT_LE(held.held, held.plain) << number;
    sum.plain += held.plain, sum.held += held.held;
    ASSERT_FALSE(testing::Test::HasFailure()) << "network " << number;
  }
  EXPECT_LT(sum.held, 0.8 * static_cast<double>(sum.plain));
}

TEST(RandomNetworks, EveryBitUnderABudget) {
  const Policy policy = within("40%");
  for (uint64_t number = 0; number < 1000; ++number) {
    expect_same_bits([&] { return RandomNetwork(number).forward(); }, {}, policy);
    ASSERT_FALSE(testing::Test::HasFailure()) << "network " << number;
  }
}

}  // namespace
}  // namespace compact
