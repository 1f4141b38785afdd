// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <numeric>

#include "support.h"

namespace compact::kernels {
namespace {

const int64_t kWidths[] = {1,   2,   3,   5,   8,    13,   16,   31,  33,
                           100, 128, 344, 511, 1376, 2048, 2736, 5461};

// Signs and r of n coordinates, drawn by a key.
struct Sketch {
  Sketch(int64_t n, int64_t r, uint64_t key) : signs(static_cast<size_t>(n / 16 + 2)) {
    for (size_t i = 0; i < signs.size(); ++i) signs[i] = philox(key, i).v[0];
    std::vector<int32_t> all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    for (size_t i = 0; i < static_cast<size_t>(r); ++i) {
      std::swap(all[i], all[i + philox(key, i, 1).v[0] % (all.size() - i)]);
    }
    index.assign(all.begin(), all.begin() + r);
    std::sort(index.begin(), index.end());
    plan = {signs.data(), index.data(), n, r};
  }
  Sketch(const Sketch&) = delete;
  std::vector<uint32_t> signs;
  std::vector<int32_t> index;
  SrhtPlan plan;
};

TEST(Srht, EqualsReferenceBitForBit) {
  for (const Backend* backend : cpu_backends()) {
    for (Type type : kTypes) {
      for (int64_t n : kWidths) {
        for (int64_t r : {int64_t{1}, (n + 3) / 4, n}) {
          const int64_t rows = 3, stride = n + 3;
          const Sketch s(n, r, 7);
          Buffer x = random(type, rows * stride, 1), z(type, rows * r), z0(type, rows * r);
          backend->srht({s.plan, x.data(), z.data(), rows, stride, type}, threaded());
          reference_backend.srht({s.plan, x.data(), z0.data(), rows, stride, type}, serial());
          EXPECT_TRUE(z.same_bits(z0)) << backend->name << " " << name_of(type) << " n=" << n;
          Buffer y(Type::kFloat32, rows * n), y0(Type::kFloat32, rows * n);
          backend->srht_transpose({s.plan, z.data(), y.f32(), rows, type}, threaded());
          reference_backend.srht_transpose({s.plan, z.data(), y0.f32(), rows, type}, serial());
          EXPECT_TRUE(y.same_bits(y0)) << backend->name << " " << name_of(type) << " n=" << n;
        }
      }
    }
  }
}

TEST(Srht, ColumnsAreOrthogonal) {  // z P^T P = (n / r) z
  for (const Backend* backend : cpu_backends()) {
    for (int64_t n : kWidths) {
      const int64_t r = (n + 3) / 4, rows = 2;
      const Sketch s(n, r, 11);
      Buffer z = random(Type::kFloat32, rows * r, 2), x(Type::kFloat32, rows * n),
             back(Type::kFloat32, rows * r);
      backend->srht_transpose({s.plan, z.data(), x.f32(), rows, Type::kFloat32}, serial());
      backend->srht({s.plan, x.data(), back.data(), rows, n, Type::kFloat32}, serial());
      const float factor = static_cast<float>(n) / static_cast<float>(r);
      for (int64_t i = 0; i < rows * r; ++i) {
        ASSERT_NEAR(back[i], factor * z[i], 1e-5f * factor) << backend->name << " n=" << n;
      }
    }
  }
}

TEST(Srht, TransposeIsTheAdjoint) {  // <x P, z> = <x, z P^T>
  for (const Backend* backend : cpu_backends()) {
    for (int64_t n : kWidths) {
      const int64_t r = (n + 1) / 2;
      const Sketch s(n, r, 13);
      Buffer x = random(Type::kFloat32, n, 3), z = random(Type::kFloat32, r, 4);
      Buffer xp(Type::kFloat32, r), zp(Type::kFloat32, n);
      backend->srht({s.plan, x.data(), xp.data(), 1, n, Type::kFloat32}, serial());
      backend->srht_transpose({s.plan, z.data(), zp.f32(), 1, Type::kFloat32}, serial());
      double left = 0, right = 0;
      for (int64_t i = 0; i < r; ++i) left += double{xp[i]} * z[i];
      for (int64_t i = 0; i < n; ++i) right += double{x[i]} * zp[i];
      EXPECT_NEAR(left, right, 1e-5 * static_cast<double>(n)) << backend->name << " n=" << n;
    }
  }
}

TEST(Srht, OneValueSpreadsOverAllOfAPowerOfTwo) {
  const int64_t n = 64;
  const Sketch s(n, n, 5);
  Buffer x(Type::kFloat32, n), z(Type::kFloat32, n);
  for (int64_t i = 0; i < n; ++i) x.set(i, i == 9 ? 8.0f : 0.0f);
  for (const Backend* backend : cpu_backends()) {
    backend->srht({s.plan, x.data(), z.data(), 1, n, Type::kFloat32}, serial());
    for (int64_t i = 0; i < n; ++i) {
      const bool minus =
          (std::popcount(static_cast<uint64_t>(i & 9)) % 2 == 1) != ((s.signs[0] >> 9 & 1) == 1);
      EXPECT_EQ(z[i], minus ? -1.0f : 1.0f) << backend->name << " " << i;
    }
  }
}

// E|z|^2 = |x|^2 over draws: mean of 400 draws; each has spread below 0.2 at n = 344, r = n/4, so
// the mean is within 0.05 with five standard deviations.
TEST(Srht, KeepsTheNormInTheMean) {
  for (const Backend* backend : cpu_backends()) {
    const int64_t n = 344, r = 86;
    for (const bool spike : {false, true}) {
      Buffer x = random(Type::kFloat32, n, 3);
      if (spike) x.set(340, 100);
      double norm = 0, mean = 0;
      for (int64_t i = 0; i < n; ++i) norm += double{x[i]} * x[i];
      for (uint64_t key = 0; key < 400; ++key) {
        const Sketch s(n, r, key);
        Buffer z(Type::kFloat32, r);
        backend->srht({s.plan, x.data(), z.data(), 1, n, Type::kFloat32}, serial());
        for (int64_t i = 0; i < r; ++i) mean += double{z[i]} * z[i] / norm / 400;
      }
      EXPECT_NEAR(mean, 1, 0.05) << backend->name;
    }
  }
}

TEST(Srht, NanReachesItsRowOnly) {
  for (const Backend* backend : cpu_backends()) {
    const int64_t n = 96, r = 24;
    const Sketch s(n, r, 3);
    Buffer x = random(Type::kBFloat16, 3 * n, 1), z(Type::kBFloat16, 3 * r);
    x.set(n + 50, NAN);
    backend->srht({s.plan, x.data(), z.data(), 3, n, Type::kBFloat16}, serial());
    for (int64_t i = 0; i < 3 * r; ++i) EXPECT_EQ(std::isnan(z[i]), i / r == 1) << backend->name;
  }
}

}  // namespace
}  // namespace compact::kernels
