// SPDX-License-Identifier: Apache-2.0
// Rope, SwiGLU and cross-entropy beside what self_check_test.cpp compares.
#include "support.h"

namespace compact::kernels {
namespace {

TEST(Rope, InvertsAndLeavesTheRest) {
  for (const Backend* backend : cpu_backends()) {
    for (Type type : kTypes) {
      for (const auto& [dim, wide] :
           {std::pair<int64_t, int64_t>{2, 2}, {6, 8}, {32, 32}, {44, 45}, {96, 128}, {128, 128}}) {
        const int64_t tokens = 11, length = 4, heads = 3, stride = heads * wide + 5;
        Buffer x = random(type, tokens * stride, 1);
        const Buffer before = random(type, tokens * stride, 1);
        Buffer cos(Type::kFloat32, length * dim / 2), sin(Type::kFloat32, length * dim / 2);
        for (int64_t i = 0; i < cos.count(); ++i) {
          cos.set(i, static_cast<float>(std::cos(0.3 * i)));
          sin.set(i, static_cast<float>(std::sin(0.3 * i)));
        }
        Rope a{x.data(), cos.f32(), sin.f32(), tokens, length, heads,
               dim,      wide,      stride,    false,  type};
        backend->rope(a, threaded());
        EXPECT_FALSE(x.same_bits(before));
        for (int64_t i = 0; i < x.count(); ++i) {
          const int64_t in_row = i % stride, in_head = in_row % wide;
          if (in_row < heads * wide && in_head < dim) continue;
          ASSERT_EQ(x[i], before[i]) << "turned beyond " << dim << " of " << wide;
        }
        a.inverse = true;
        backend->rope(a, serial());
        const float error = type == Type::kFloat32 ? 1e-6f : 0.04f;
        for (int64_t i = 0; i < x.count(); ++i) ASSERT_NEAR(x[i], before[i], error) << dim;
      }
    }
  }
}

TEST(SwiGlu, RoundsTheSiluAndGivesTheSameBitsInPlace) {
  for (const Backend* backend : cpu_backends()) {
    for (Type type : kTypes) {
      for (const int64_t m : {1, 3, 16, 67, 352}) {
        const int64_t rows = m == 3 ? 0 : 7;
        const std::string where = cat(backend->name, " ", name_of(type), " ", m);
        Buffer x = random(type, rows * 2 * m, 1, 4), g = random(type, rows * m, 2);
        Buffer silu(type, rows * m), p(type, rows * m);
        backend->swiglu({x.data(), silu.data(), p.data(), rows, m, type}, threaded());
        for (int64_t i = 0; i < rows * m; ++i) {  // the product is made of the rounded silu
          Buffer expected(type, 1);
          expected.set(0, silu[i] * x[i / m * 2 * m + m + i % m]);
          ASSERT_EQ(p[i], expected[0]) << where;
        }
        Buffer alone(type, rows * m);
        backend->swiglu({x.data(), nullptr, alone.data(), rows, m, type}, serial());
        EXPECT_TRUE(alone.same_bits(p)) << where;

        Buffer gx(type, rows * 2 * m);
        SwiGluBackward b{g.data(), x.data(), silu.data(), gx.data(), rows, m, type};
        backend->swiglu_backward(b, threaded());
        b.ggate_up = x.data();  // in place, silu made again: the same bits
        b.silu = nullptr;
        backend->swiglu_backward(b, serial());
        EXPECT_TRUE(x.same_bits(gx)) << where;
      }
    }
  }
}

TEST(SwiGlu, SpecialValues) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> gates = {0, -0.0f, 100, -100, 1e38f, -1e38f, inf, NAN, 88, -88, -90, 90};
  const int64_t m = static_cast<int64_t>(gates.size());
  std::vector<float> both = gates;
  both.insert(both.end(), gates.size(), 1.0f);
  for (const Backend* backend : cpu_backends()) {
    Buffer x(Type::kFloat32, both), y(Type::kFloat32, m), y0(Type::kFloat32, m);
    backend->swiglu({x.data(), y.data(), nullptr, 1, m, Type::kFloat32}, serial());
    reference_backend.swiglu({x.data(), y0.data(), nullptr, 1, m, Type::kFloat32}, serial());
    expect_near(y, y0, 3e-6f, 1e-30f, backend->name);
    EXPECT_TRUE(std::isnan(y[7]));
    EXPECT_EQ(y[6], inf);
    EXPECT_EQ(y[2], 100);
  }
}

TEST(CrossEntropy, SameBitsOverTheLogitsAndNothingWhereIgnored) {
  for (const Backend* backend : cpu_backends()) {
    for (Type type : kTypes) {
      for (const int64_t vocabulary : {1, 2, 17, 64, 259, 1003}) {
        const int64_t rows = 9;
        const std::string where = cat(backend->name, " ", name_of(type), " ", vocabulary);
        Buffer x = random(type, rows * vocabulary, 1, 20);
        std::vector<int64_t> targets(rows);
        for (int64_t i = 0; i < rows; ++i) targets[i] = i == 3 ? kIgnoreIndex : i * 37 % vocabulary;
        Buffer lse(Type::kFloat32, rows), loss(Type::kFloat32, rows),
            p(Type::kFloat32, rows * vocabulary), g(type, rows * vocabulary);
        backend->cross_entropy(
            {x.data(), targets.data(), lse.f32(), loss.f32(), p.f32(), rows, vocabulary, type},
            threaded());
        EXPECT_EQ(loss[3], 0);

        CrossEntropyBackward b{nullptr,    p.f32(), nullptr, targets.data(), g.data(), rows,
                               vocabulary, 0.25f,   type};
        backend->cross_entropy_backward(b, threaded());
        b = {x.data(), nullptr, lse.f32(), targets.data(), x.data(), rows, vocabulary, 0.25f, type};
        backend->cross_entropy_backward(b, serial());  // over the logits
        EXPECT_TRUE(x.same_bits(g)) << where;
        for (int64_t i = 0; i < vocabulary; ++i) EXPECT_EQ(g[3 * vocabulary + i], 0);
      }
    }
  }
}

TEST(CrossEntropy, LargeLogitsAndNan) {
  for (const Backend* backend : cpu_backends()) {
    Buffer x(Type::kFloat32, std::vector<float>{1e38f, 0, -1e38f, 1000, 1000, 1000, 1, NAN, 1});
    const int64_t targets[] = {0, 1, 2};
    Buffer lse(Type::kFloat32, 3), loss(Type::kFloat32, 3);
    backend->cross_entropy(
        {x.data(), targets, lse.f32(), loss.f32(), nullptr, 3, 3, Type::kFloat32}, serial());
    EXPECT_EQ(loss[0], 0) << backend->name;
    EXPECT_NEAR(loss[1], std::log(3.0f), 1e-4f) << backend->name;
    EXPECT_TRUE(std::isnan(loss[2])) << backend->name;
  }
}

// Such a row has loss and gradient NaN, and nothing outside of it is read; its neighbours have
// their own.
TEST(CrossEntropy, TargetsThatAreNoClassGiveNan) {
  constexpr int64_t kClasses = 37, kRows = 6;
  const int64_t targets[kRows] = {0, kClasses, -1, kIgnoreIndex, INT64_MAX, kClasses - 1};
  for (const Backend* backend : cpu_backends()) {
    for (const Type type : {Type::kFloat32, Type::kBFloat16}) {
      Buffer x = random(type, kRows * kClasses, 1, 3);
      Buffer lse(Type::kFloat32, kRows), loss(Type::kFloat32, kRows),
          p(Type::kFloat32, kRows * kClasses), g(type, kRows * kClasses);
      backend->cross_entropy(
          {x.data(), targets, lse.f32(), loss.f32(), p.f32(), kRows, kClasses, type}, serial());
      for (const bool from_logits : {true, false}) {
        backend->cross_entropy_backward(
            {from_logits ? x.data() : nullptr, from_logits ? nullptr : p.f32(), lse.f32(), targets,
             g.data(), kRows, kClasses, 0.5f, type},
            serial());
        for (int64_t row = 0; row < kRows; ++row) {
          const bool none = row == 1 || row == 2 || row == 4;
          EXPECT_EQ(std::isnan(loss[row]), none) << backend->name << " row " << row;
          EXPECT_TRUE(std::isfinite(lse[row]));
          for (int64_t i = 0; i < kClasses; ++i) {
            ASSERT_EQ(std::isnan(g[row * kClasses + i]), none)
                << backend->name << " row " << row << " of " << name_of(type) << " at " << i;
          }
        }
      }
    }
  }
}

// grad = exp(p) off the target: within 2 units in the last place from end to end, and its limits.
TEST(CrossEntropy, ExponentialIsExact) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> p = {0, -inf, inf, NAN, 89.5f, -110, -87.4f, -100, 88.7f, 1e-30f};
  for (int i = 0; i < 50000; ++i) p.push_back(-87.3f + 176.0f * static_cast<float>(i) / 50000);
  const int64_t count = static_cast<int64_t>(p.size()), target = 0;
  for (const Backend* backend : cpu_backends()) {
    Buffer x(Type::kFloat32, p), g(Type::kFloat32, count);
    backend->cross_entropy_backward(
        {nullptr, x.f32(), nullptr, &target, g.data(), 1, count, 1.0f, Type::kFloat32}, serial());
    EXPECT_EQ(g[0], 0);
    EXPECT_EQ(g[1], 0);
    EXPECT_EQ(g[2], inf);
    EXPECT_TRUE(std::isnan(g[3]));
    EXPECT_EQ(g[4], inf);
    EXPECT_EQ(g[5], 0);
    for (int64_t i = 6; i < count; ++i) {
      const double want = std::exp(static_cast<double>(x[i]));
      const float near = static_cast<float>(want);
      const double unit = std::nextafter(near, inf) - near;
      ASSERT_LE(std::abs(g[i] - want), 2 * unit) << backend->name << " exp(" << x[i] << ")";
    }
  }
}

}  // namespace
}  // namespace compact::kernels
