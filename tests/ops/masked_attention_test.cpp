// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/masked_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "compact/base/check.h"

namespace compact {
namespace {

struct Input {
  at::Tensor q, k, v, gout, lengths;
};

Input input_of(int64_t batch, int64_t heads, int64_t length, int64_t dim) {
  const auto generator = at::detail::createCPUGenerator(batch * 100 + length);
  const auto random = [&] { return at::randn({batch, heads, length, dim}, generator); };
  Input in{random(), random(), random(), random(), {}};
  in.lengths = at::randint(1, length + 1, {batch}, generator, at::kLong);
  in.lengths[0] = length;
  return in;
}

// As written down, all at once, in f64.
at::Tensor plain_masked(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const MaskedAttention& how) {
  const at::Tensor& lengths = how.lengths;
  at::Tensor scores = q.matmul(k.transpose(2, 3)) *
                      how.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  if (how.softcap > 0) scores = at::tanh(scores / how.softcap) * how.softcap;
  if (how.causal) {
    const at::Tensor all = at::ones({q.size(2), k.size(2)}, at::kBool);
    const int64_t before = k.size(2) - q.size(2);
    scores = scores.masked_fill(all.triu(before + 1), -std::numeric_limits<double>::infinity());
    if (how.window > 0) {
      scores = scores.masked_fill(all.tril(before - how.window),
                                  -std::numeric_limits<double>::infinity());
    }
  }
  if (lengths.defined()) {
    const at::Tensor padding = at::arange(k.size(2)).ge(lengths.unsqueeze(1));
    scores = scores.masked_fill(padding.view({-1, 1, 1, k.size(2)}),
                                -std::numeric_limits<double>::infinity());
  }
  return at::softmax(scores, -1).nan_to_num(0).matmul(v);
}

double error(const at::Tensor& got, const at::Tensor& want) {
  return ((got.to(at::kDouble) - want).norm() / want.norm()).item<double>();
}

// One chunk; several of samples; several of queries; lengths odd and 1.
struct Sizes {
  int64_t batch, heads, length, dim;
};
constexpr Sizes kSizes[] = {{3, 2, 7, 4}, {1, 1, 1, 3}, {9, 4, 512, 8}, {2, 2, 1700, 2}};

TEST(MaskedAttention, EqualsThePlainOne) {
  for (const Sizes& s : kSizes) {
    for (const int kind : {0, 1, 2, 3, 4, 5, 6, 7, 8}) {
      const Input in = input_of(s.batch, s.heads, s.length, s.dim);
      MaskedAttention how{.causal = kind > 1};
      if (kind == 1 || kind == 3 || kind > 6) how.lengths = in.lengths;
      if (kind == 2) how.scale = 0.3;
      if (kind > 3) how.window = kind == 4 ? 1 : kind % 2 == 1 ? 5 : 300;
      if (kind > 4) how.softcap = 0.7;
      const auto leaf = [](const at::Tensor& t) { return t.to(at::kDouble).requires_grad_(); };
      const at::Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
      const at::Tensor want = plain_masked(q, k, v, how);
      want.backward(in.gout.to(at::kDouble));
      const at::Tensor got = masked_attention(in.q, in.k, in.v, how);
      EXPECT_LT(error(got, want.detach()), 1e-6) << s.length;
      EXPECT_TRUE(got.transpose(1, 2).is_contiguous());
      const at::Tensor gq = at::empty_like(in.q), gk = at::empty_like(in.k),
                       gv = at::empty_like(in.v);
      masked_attention_backward(in.gout, in.q, in.k, in.v, how, gq, gk, gv);
      if (s.length > 1 && how.window != 1) {
        EXPECT_LT(error(gq, q.grad()), 2e-6) << s.length;
        EXPECT_LT(error(gk, k.grad()), 2e-6) << s.length;
      }
      EXPECT_LT(error(gv, v.grad()), 2e-6) << s.length;
      // In the memory of the inputs, which are views of one tensor.
      const at::Tensor fused = at::cat({in.q, in.k, in.v}, 1);
      const auto part = [&](int64_t i) { return fused.narrow(1, i * s.heads, s.heads); };
      masked_attention_backward(in.gout, part(0), part(1), part(2), how, part(0), part(1), part(2));
      EXPECT_TRUE(part(0).equal(gq) && part(1).equal(gk) && part(2).equal(gv)) << s.length;
    }
  }
}

// New tokens after others are the last rows of the whole.
TEST(MaskedAttention, MayHaveKeysBeforeItsQueries) {
  for (const int64_t window : {0, 1, 4, 300, 5000}) {
    const Input in = input_of(1, 3, 1200, 4);
    const MaskedAttention how{.causal = true, .window = window, .softcap = 2};
    const at::Tensor want =
        plain_masked(in.q.to(at::kDouble), in.k.to(at::kDouble), in.v.to(at::kDouble), how);
    for (const int64_t rows : {1, 7, 700}) {
      const at::Tensor last = in.q.narrow(2, 1200 - rows, rows);
      EXPECT_LT(error(masked_attention(last, in.k, in.v, how), want.narrow(2, 1200 - rows, rows)),
                1e-6)
          << window << " " << rows;
    }
  }
}

// Gradients of keys and values are sums over chunks: as exact in bf16 over 32 of them as in one.
TEST(MaskedAttention, SumsOverChunksAreNotRounded) {
  const Input in = input_of(1, 32, 2048, 4);
  const auto half = [](const at::Tensor& t) { return t.to(at::kBFloat16); };
  const at::Tensor q = half(in.q), k = half(in.k), v = half(in.v), gout = half(in.gout);
  const MaskedAttention how{.causal = true, .softcap = 5};
  const auto gradients = [&](at::ScalarType type) {
    std::vector<at::Tensor> all;
    for (const at::Tensor* t : {&q, &k, &v})
      all.push_back(at::empty(t->sizes(), t->options().dtype(type)));
    masked_attention_backward(gout.to(type), q.to(type), k.to(type), v.to(type), how, all[0],
                              all[1], all[2]);
    return all;
  };
  const auto got = gradients(at::kBFloat16), want = gradients(at::kFloat);
  for (size_t i = 0; i < 3; ++i) EXPECT_LT(error(got[i], want[i].to(at::kDouble)), 5e-3) << i;
}

TEST(MaskedAttention, RefusesWindowsThatAreNone) {
  const Input in = input_of(2, 2, 5, 4);
  for (const MaskedAttention& how :
       {MaskedAttention{.window = 3}, MaskedAttention{.causal = true, .window = -1}}) {
    EXPECT_THROW(masked_attention(in.q, in.k, in.v, how), InputError);
  }
}

// The mean over keys is the attention without dropout: within six standard errors of every element.
TEST(MaskedAttention, DropoutIsUnbiased) {
  const Input in = input_of(2, 2, 5, 3);
  MaskedAttention how{.lengths = in.lengths, .dropout = 0.3};
  const at::Tensor want = plain_masked(in.q, in.k, in.v, {.lengths = in.lengths});
  constexpr int kDraws = 4000;
  at::Tensor sum = at::zeros_like(want), square = at::zeros_like(want);
  for (how.key = 1; how.key <= kDraws; ++how.key) {
    const at::Tensor y = masked_attention(in.q, in.k, in.v, how);
    sum += y;
    square += y * y;
  }
  const at::Tensor mean = sum / kDraws;
  const at::Tensor deviation = (square / kDraws - mean * mean).sqrt();
  EXPECT_GT(deviation.mean().item<double>(), 0.05);
  EXPECT_LT(((mean - want).abs() / (deviation / std::sqrt(kDraws) + 1e-6)).max().item<double>(), 6);
}

// For one key the result is linear in v, and smooth in q and k.
TEST(MaskedAttention, GradientsBelongToTheMaskThatWasDrawn) {
  for (const Sizes& s : {Sizes{3, 2, 9, 4}, Sizes{2, 2, 1700, 2}}) {
    const Input in = input_of(s.batch, s.heads, s.length, s.dim);
    const MaskedAttention how{.lengths = in.lengths, .dropout = 0.4, .key = 77};
    const at::Tensor gq = at::empty_like(in.q), gk = at::empty_like(in.k),
                     gv = at::empty_like(in.v);
    masked_attention_backward(in.gout, in.q, in.k, in.v, how, gq, gk, gv);
    const auto loss = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      return (masked_attention(q, k, v, how).to(at::kDouble) * in.gout).sum().item<double>();
    };
    const auto along = [](const at::Tensor& g, const at::Tensor& by) {
      return (g.to(at::kDouble) * by).sum().item<double>();
    };
    const double out = loss(in.q, in.k, in.v);
    EXPECT_NEAR(along(gv, in.v), out, 1e-4 * (std::abs(out) + 1));
    constexpr double kStep = 1e-2;
    const at::Tensor by = at::randn(in.q.sizes(), at::detail::createCPUGenerator(3));
    const double dq =
        (loss(in.q + kStep * by, in.k, in.v) - loss(in.q - kStep * by, in.k, in.v)) / (2 * kStep);
    const double dk =
        (loss(in.q, in.k + kStep * by, in.v) - loss(in.q, in.k - kStep * by, in.v)) / (2 * kStep);
    EXPECT_NEAR(along(gq, by), dq, 2e-3 * (std::abs(dq) + 1));
    EXPECT_NEAR(along(gk, by), dk, 2e-3 * (std::abs(dk) + 1));
    // Another key, another mask.
    const MaskedAttention other{.lengths = in.lengths, .dropout = 0.4, .key = 78};
    EXPECT_FALSE(
        masked_attention(in.q, in.k, in.v, other).equal(masked_attention(in.q, in.k, in.v, how)));
  }
}

TEST(MaskedAttention, RefusesWhatDoesNotFit) {
  const Input in = input_of(2, 2, 5, 3);
  EXPECT_THROW(masked_attention(in.q, in.k.narrow(2, 0, 4), in.v, {}), InputError);
  EXPECT_THROW(masked_attention(in.q, in.k, in.v, {.lengths = at::ones({3}, at::kLong)}),
               InputError);
}

}  // namespace
}  // namespace compact
