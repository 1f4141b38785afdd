// SPDX-License-Identifier: Apache-2.0
// NF4 against its definition. What bitsandbytes makes is compared by tests/tasks/nf4.py.
#include "compact/codecs/nf4.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "compact/codecs/nf4_weights.h"
#include "compact/kernels/nf4.h"

namespace compact {
namespace {

std::vector<at::Tensor> all_of(const Nf4& x) {
  std::vector<at::Tensor> all = x.tensors();
  all.push_back(x.maps);
  return all;
}

void expect_same(const Nf4& a, const Nf4& b) {
  ASSERT_EQ(a.nested(), b.nested());
  for (size_t i = 0; i < all_of(a).size(); ++i) {
    EXPECT_TRUE(at::equal(all_of(a)[i], all_of(b)[i])) << i;
  }
}

// The nearest level of each element, by its block's largest size.
at::Tensor nearest(const at::Tensor& matrix) {
  const at::Tensor x = matrix.to(at::kFloat).reshape({-1}), y = at::empty_like(x);
  for (int64_t first = 0; first < x.numel(); first += 64) {
    const int64_t count = std::min<int64_t>(64, x.numel() - first);
    const at::Tensor block = x.narrow(0, first, count);
    const float most = block.abs().max().item<float>();
    for (int64_t i = 0; i < count; ++i) {
      const float v = most > 0 ? block[i].item<float>() / most : 0;
      float best = -1;
      for (const float level : kernels::kNf4Levels) {
        if (std::abs(level - v) < std::abs(best - v)) best = level;
      }
      y[first + i] = best * most;
    }
  }
  return y.view(matrix.sizes());
}

TEST(Nf4, TakesTheNearestLevel) {
  at::manual_seed(1);
  for (const auto& [rows, columns] : {std::pair{1, 1}, {3, 5}, {2, 64}, {7, 33}, {5, 130}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor x = at::randn({rows, columns}).to(type);
      x[0].zero_();
      const Nf4 codes = encode_nf4(x, false);
      EXPECT_EQ(codes.codes.numel(), (rows * columns + 1) / 2);
      const at::Tensor y = at::empty({rows, columns}), half = at::empty_like(y, at::kBFloat16);
      codes.decode(y);
      EXPECT_TRUE(at::equal(y, nearest(x))) << rows << " x " << columns;
      codes.decode(half);
      EXPECT_TRUE(at::equal(half, y.to(at::kBFloat16)));
    }
  }
}

TEST(Nf4, NestedScalesAreNear) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({300, 257}), y = at::empty_like(x), z = at::empty_like(x);
  const Nf4 codes = encode_nf4(x, true);
  const int64_t blocks = (300 * 257 + 63) / 64;
  EXPECT_EQ(codes.scale_codes.numel(), blocks);
  EXPECT_EQ(codes.scales.numel(), (blocks + 255) / 256 + 1);
  codes.decode(y);
  encode_nf4(x, false).decode(z);
  EXPECT_LT((y - z).norm().item<float>(), 0.02 * z.norm().item<float>());
  EXPECT_FALSE(at::equal(y, z));
}

TEST(Nf4, ThreadsChangeNothing) {
  const int before = at::get_num_threads();
  at::manual_seed(3);
  // So many scales that a sum of them is divided between threads.
  const at::Tensor x = at::rand({2048, 2048});
  at::set_num_threads(1);
  const Nf4 one = encode_nf4(x, true);
  at::set_num_threads(2);
  expect_same(encode_nf4(x, true), one);
  at::set_num_threads(before);
}

// Two matrices in one weight, with padding after each and at the end of rows.
TEST(Nf4Weights, AreThereWhileTheyAreRead) {
  at::manual_seed(4);
  for (const bool nested : {false, true}) {
    const at::Tensor first = at::randn({5, 35}), second = at::randn({9, 35});
    Parameter p{.name = "w",
                .weight = padded(at::cat({first, second}), {7, 11}, {.rows = 2, .columns = 5}),
                .parts = {7, 11},
                .padding = {.rows = 2, .columns = 5}};
    const at::Tensor value = p.weight.detach();
    const auto home = std::make_shared<Nf4Weights>(nested, at::kCPU);
    home->take(p, p.parts);
    EXPECT_EQ(p.weight.storage().nbytes(), 0u);
    const auto bytes = [&](int64_t count) {
      const int64_t blocks = (count + 63) / 64;
      return (count + 1) / 2 + (nested ? blocks + 4 * ((blocks + 255) / 256 + 1) : 4 * blocks);
    };
    EXPECT_EQ(p.weight_bytes(), bytes(5 * 35) + bytes(9 * 35));
    const at::Tensor view = part_of_matrix(value, 7, 9, 35);
    ASSERT_NE(home->find(view), nullptr);
    EXPECT_EQ(home->find(view)->rows, 9);
    EXPECT_EQ(home->find(first), nullptr);
    home->set(view, encode_nf4(second * 2, nested));
    ASSERT_EQ(p.places.size(), 1u);
    EXPECT_TRUE(p.places[0].by_product);
    const uint32_t version = p.weight._version();
    home->fetch(0, false);
    home->fetch(0, true);
    home->release(0);
    const at::Tensor a = at::empty({5, 35}), b = at::empty({9, 35});
    encode_nf4(first, nested).decode(a);
    encode_nf4(second * 2, nested).decode(b);
    EXPECT_TRUE(at::equal(value, padded(at::cat({a, b}), {7, 11}, p.padding)));
    EXPECT_EQ(p.weight._version(), version);
    home->release(0);
    EXPECT_EQ(p.weight.storage().nbytes(), 0u);
    EXPECT_THROW(home->set(view, encode_nf4(first, nested)), std::exception);
    EXPECT_THROW(home->set(view, encode_nf4(second, !nested)), std::exception);
  }
}

}  // namespace
}  // namespace compact
