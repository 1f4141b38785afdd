// SPDX-License-Identifier: Apache-2.0
// What every projection must do exactly: both directions agree with the matrix, for every type.
#include "compact/codecs/projection.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "compact/base/check.h"

namespace compact {
namespace {

double max_difference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  if (a.numel() == 0) return 0;
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

struct Case {
  std::string name;
  int64_t n, r;
  at::ScalarType type;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const ProjectionInfo* info : projections()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const auto& [n, r] : {std::pair<int64_t, int64_t>{1, 1},
                                 {2, 1},
                                 {3, 3},
                                 {31, 7},
                                 {33, 8},
                                 {64, 16},
                                 {100, 100},
                                 {344, 86},
                                 {1376, 43}}) {
        cases.push_back({info->name, n, r, type});
      }
    }
  }
  return cases;
}

class ProjectionCase : public testing::TestWithParam<Case> {
 protected:
  Case c = GetParam();
  at::TensorOptions options = at::TensorOptions().dtype(c.type);
  ProjectionPtr p = make_projection(c.name, c.n, c.r, 7, options);
  double eps = c.type == at::kFloat ? 1e-5 : 1e-2;
};

TEST_P(ProjectionCase, ApplyAndTransposeAreTheMatrix) {
  const at::Tensor matrix = p->matrix();
  ASSERT_EQ(matrix.sizes(), at::IntArrayRef({c.n, c.r}));
  ASSERT_EQ(matrix.scalar_type(), at::kFloat);
  for (const int64_t rows : {0, 1, 5}) {
    const at::Tensor x = at::randn({rows, c.n}, options), z = at::randn({rows, c.r}, options);
    const at::Tensor expected = x.to(at::kDouble).mm(matrix.to(at::kDouble));
    EXPECT_EQ(p->apply(x).scalar_type(), c.type);
    EXPECT_LE(max_difference(p->apply(x), expected),
              eps * (1 + std::sqrt(static_cast<double>(c.n) / c.r)) * 4);
    const at::Tensor back = p->transpose(z);
    EXPECT_EQ(back.scalar_type(), at::kFloat);
    // f32 whatever the type: only the rounding of the values that apply used is in it.
    EXPECT_LE(max_difference(back, z.to(at::kDouble).mm(matrix.to(at::kDouble).t())),
              1e-5 * (1 + std::sqrt(static_cast<double>(c.n))));
  }
}

TEST_P(ProjectionCase, TakesBatchesAndStrides) {
  const at::Tensor wide = at::randn({2, 3, c.n + 5}, options);
  const at::Tensor x = wide.narrow(2, 1, c.n);
  EXPECT_TRUE(at::equal(p->apply(x), p->apply(x.contiguous().view({6, c.n}))));
  const at::Tensor row_strided = wide[0].narrow(1, 3, c.n),
                   turned = at::randn({c.n, 4}, options).t();
  EXPECT_TRUE(at::equal(p->apply(row_strided), p->apply(row_strided.contiguous())));
  EXPECT_TRUE(at::equal(p->apply(turned), p->apply(turned.contiguous())));
}

TEST_P(ProjectionCase, DependsOnTheKeyOnly) {
  const ProjectionPtr again = make_projection(c.name, c.n, c.r, 7, options);
  EXPECT_TRUE(at::equal(p->matrix(), again->matrix()));
  if (c.n >= 31) {
    EXPECT_FALSE(at::equal(p->matrix(), make_projection(c.name, c.n, c.r, 8, options)->matrix()));
  }
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor serial = p->matrix();
  at::set_num_threads(3);
  EXPECT_TRUE(at::equal(serial, p->matrix()));
  at::set_num_threads(before);
}

TEST_P(ProjectionCase, OverlapIsTheProductOfMatrices) {
  const ProjectionPtr other =
      make_projection(c.name, c.n, std::max<int64_t>(1, c.r / 2), 8, options);
  const at::Tensor expected = p->matrix().to(at::kDouble).t().mm(other->matrix().to(at::kDouble));
  EXPECT_LE(max_difference(p->overlap(*other), expected), 1e-4 * static_cast<double>(c.n) / c.r);
}

INSTANTIATE_TEST_SUITE_P(All, ProjectionCase, testing::ValuesIn(all_cases()), [](const auto& info) {
  return info.param.name + "_" + std::to_string(info.param.n) + "_" + std::to_string(info.param.r) +
         "_" + (info.param.type == at::kFloat ? "f32" : "bf16");
});

// <x P, z> = <x, z P^T> without the matrix, at widths where it is large.
TEST(Projection, TransposeIsTheAdjoint) {
  for (const ProjectionInfo* info : projections()) {
    for (const int64_t n : {344, 1376, 2736, 5461}) {
      const ProjectionPtr p = make_projection(info->name, n, n / 8, 3, at::kFloat);
      const at::Tensor x = at::randn({2, n}), z = at::randn({2, n / 8});
      const double left = (p->apply(x).to(at::kDouble) * z.to(at::kDouble)).sum().item<double>();
      const double right =
          (x.to(at::kDouble) * p->transpose(z).to(at::kDouble)).sum().item<double>();
      EXPECT_NEAR(left, right, 1e-4 * std::sqrt(static_cast<double>(n))) << info->name << " " << n;
    }
  }
}

TEST(Projection, SrhtIsOrthogonal) {
  for (const int64_t n : {1, 2, 3, 344, 511, 512, 513, 1376, 2736, 5461}) {
    for (const int64_t r : {std::max<int64_t>(1, n / 4), std::min<int64_t>(n, 512)}) {
      const at::Tensor p = make_projection("srht", n, r, 11, at::kFloat)->matrix();
      const double ratio = static_cast<double>(n) / static_cast<double>(r);
      EXPECT_LE(max_difference(p.t().mm(p), at::eye(r) * ratio), 2e-5 * ratio) << n << " " << r;
    }
  }
}

TEST(Projection, BytesAreThoseHeld) {
  EXPECT_EQ(make_projection("gaussian", 1376, 344, 1, at::kFloat)->bytes(), 0);
  // 1376 + 1024 bits, 344 indices.
  EXPECT_EQ(make_projection("srht", 1376, 344, 1, at::kFloat)->bytes(), 75 * 4 + 344 * 4);
  EXPECT_EQ(make_projection("srht", 512, 128, 1, at::kFloat)->bytes(), 16 * 4 + 128 * 4);
}

TEST(Projection, RunsOnMeta) {
  for (const ProjectionInfo* info : projections()) {
    const at::TensorOptions options = at::device(at::kMeta).dtype(at::kBFloat16);
    const ProjectionPtr p = make_projection(info->name, 1376, 344, 5, options);
    const at::Tensor z = p->apply(at::empty({2, 3, 1376}, options));
    EXPECT_TRUE(z.is_meta());
    EXPECT_EQ(z.sizes(), at::IntArrayRef({6, 344}));
    EXPECT_EQ(p->transpose(z).sizes(), at::IntArrayRef({6, 1376}));
    EXPECT_EQ(p->overlap(*p).sizes(), at::IntArrayRef({344, 344}));
    const int64_t held = make_projection(info->name, 1376, 344, 5, at::kFloat)->bytes();
    EXPECT_EQ(p->bytes(), held);
  }
}

TEST(Projection, RefusesBadInput) {
  EXPECT_THROW(make_projection("gausian", 8, 2, 0, at::kFloat), InputError);
  for (const ProjectionInfo* info : projections()) {
    EXPECT_THROW(make_projection(info->name, 8, 0, 0, at::kFloat), InputError);
    EXPECT_THROW(make_projection(info->name, 8, 9, 0, at::kFloat), InputError);
  }
  try {
    make_projection("gausian", 8, 2, 0, at::kFloat);
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("did you mean `gaussian`"), std::string::npos) << e.what();
  }
}

TEST(Projection, ResolvesRanks) {
  EXPECT_EQ(resolve_rank(0.25, 344), 86);
  EXPECT_EQ(resolve_rank(0.001, 8), 1);
  EXPECT_EQ(resolve_rank(1, 8), 1);
  EXPECT_EQ(resolve_rank(8, 8), 8);
  for (const double rank : {0.0, -1.0, 1.5, 9.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(resolve_rank(rank, 8), InputError) << rank;
  }
}

}  // namespace
}  // namespace compact
