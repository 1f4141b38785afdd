// SPDX-License-Identifier: Apache-2.0
// The exact rules of every projection: both directions agree with the matrix, for every type.
#include "compact/codecs/projection.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "compact/base/check.h"
#include "compact/codecs/blocks.h"
#include "compact/codecs/meta_device.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

double max_difference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  if (a.numel() == 0) return 0;
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

// Every projection in both types, at every shape.
class EveryProjection : public testing::TestWithParam<std::tuple<std::string, at::ScalarType>> {
 protected:
  const std::string name = std::get<0>(GetParam());
  const at::ScalarType type = std::get<1>(GetParam());
  const at::TensorOptions options = at::TensorOptions().dtype(type);

  template <class F>
  void for_shapes(F f) const {
    for (const auto& [n, r] : {std::pair<int64_t, int64_t>{1, 1},
                               {2, 1},
                               {3, 3},
                               {31, 7},
                               {33, 8},
                               {64, 16},
                               {100, 100},
                               {344, 86},
                               {1376, 43},
                               {1100, 1000}}) {
      SCOPED_TRACE(testing::Message() << "n = " << n << ", r = " << r);
      f(n, r, *make_projection(name, n, r, 7, options));
    }
  }
};

TEST_P(EveryProjection, AppliesAndTransposesTheMatrix) {
  const double eps = type == at::kFloat ? 1e-5 : 1e-2;
  for_shapes([&](int64_t n, int64_t r, const Projection& p) {
    const at::Tensor matrix = p.matrix();
    ASSERT_EQ(matrix.sizes(), at::IntArrayRef({n, r}));
    ASSERT_EQ(matrix.scalar_type(), at::kFloat);
    for (const int64_t rows : {0, 1, 5}) {
      const at::Tensor x = at::randn({rows, n}, options), z = at::randn({rows, r}, options);
      EXPECT_EQ(p.apply(x).scalar_type(), type);
      EXPECT_LE(max_difference(p.apply(x), x.to(at::kDouble).mm(matrix.to(at::kDouble))),
                4 * eps * (1 + std::sqrt(static_cast<double>(n) / r)));
      // f32 whatever the type: the values that apply rounded are taken as they are.
      EXPECT_EQ(p.transpose(z).scalar_type(), at::kFloat);
      EXPECT_LE(max_difference(p.transpose(z), z.to(at::kDouble).mm(matrix.to(at::kDouble).t())),
                1e-5 * (1 + std::sqrt(static_cast<double>(n) / r)));
    }
  });
}

TEST_P(EveryProjection, TakesBatchesAndStrides) {
  for_shapes([&](int64_t n, int64_t, const Projection& p) {
    const at::Tensor wide = at::randn({2, 3, n + 5}, options);
    const at::Tensor batch = wide.narrow(2, 1, n), strided = wide[0].narrow(1, 3, n);
    const at::Tensor turned = at::randn({n, 4}, options).t();
    EXPECT_TRUE(at::equal(p.apply(batch), p.apply(batch.contiguous().view({6, n}))));
    EXPECT_TRUE(at::equal(p.apply(strided), p.apply(strided.contiguous())));
    // A transposed operand may take another path through the matrix library.
    EXPECT_LE(max_difference(p.apply(turned), p.apply(turned.contiguous())),
              type == at::kFloat ? 1e-4 : 0.1);
  });
}

TEST_P(EveryProjection, DependsOnTheKeyOnly) {
  const int before = at::get_num_threads();
  for_shapes([&](int64_t n, int64_t r, const Projection& p) {
    at::set_num_threads(1);
    const at::Tensor serial = p.matrix();
    at::set_num_threads(3);
    EXPECT_TRUE(at::equal(serial, make_projection(name, n, r, 7, options)->matrix()));
    if (n < 31) return;
    EXPECT_FALSE(at::equal(serial, make_projection(name, n, r, 8, options)->matrix()));
  });
  at::set_num_threads(before);
}

TEST_P(EveryProjection, OverlapsAsMatricesDo) {
  for_shapes([&](int64_t n, int64_t r, const Projection& p) {
    const ProjectionPtr other = make_projection(name, n, std::max<int64_t>(1, r / 2), 8, options);
    const at::Tensor expected = p.matrix().to(at::kDouble).t().mm(other->matrix().to(at::kDouble));
    EXPECT_LE(max_difference(p.overlap(*other), expected), 1e-4 * static_cast<double>(n) / r);
  });
}

std::vector<std::string> type_names() {
  std::vector<std::string> all;
  for (const ProjectionInfo* info : projections()) all.push_back(info->name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, EveryProjection,
                         testing::Combine(testing::ValuesIn(type_names()),
                                          testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           return std::get<0>(info.param) +
                                  (std::get<1>(info.param) == at::kFloat ? "_f32" : "_bf16");
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

// Dense types draw a block of rows at a time, each from its own key.
TEST(Projection, BlocksOfRowsDiffer) {
  constexpr int64_t kRank = 1000;
  const int64_t block = block_rows(kRank);
  for (const char* name : {"gaussian", "rademacher", "sparse"}) {
    const at::Tensor p = make_projection(name, block + 3, kRank, 1, at::kFloat)->matrix();
    EXPECT_FALSE(at::equal(p[0], p[block])) << name;
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
  for (const ProjectionInfo* info : projections()) {
    EXPECT_THROW(make_projection(info->name, 8, 0, 0, at::kFloat), InputError);
    EXPECT_THROW(make_projection(info->name, 8, 9, 0, at::kFloat), InputError);
  }
  EXPECT_THAT(error_of([] { make_projection("gausian", 8, 2, 0, at::kFloat); }),
              testing::HasSubstr("did you mean `gaussian`"));
}

TEST(Projection, ResolvesRanks) {
  EXPECT_EQ(resolve_rank(0.25, 344), 86);
  EXPECT_EQ(resolve_rank(0.001, 8), 1);
  EXPECT_EQ(resolve_rank(1, 8), 1);
  EXPECT_EQ(resolve_rank(8, 8), 8);
  for (const double rank :
       {0.0, -1.0, 1.5, 9.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(resolve_rank(rank, 8), InputError) << rank;
  }
}

// The longest rows that fit shared memory, from the layout that the kernel gives them.
TEST(Srht, SaysWhichRowsAGpuHolds) {
  const struct {
    const char* name;
    int64_t kib, most;
  } gpus[] = {{"H200", 227, 54693}, {"A100", 163, 39273}, {"RTX 4090", 99, 23853}};
  for (const auto& [name, kib, most] : gpus) {
    const kernels::Gpu gpu{.name = name, .shared_memory = kib << 10};
    check_srht_row(most, gpu);
    EXPECT_THAT(
        error_of([&] { check_srht_row(most + 1, gpu); }),
        testing::AllOf(testing::HasSubstr(std::to_string(most + 1)), testing::HasSubstr(name)));
  }
}

// A plan for a GPU refuses what the step would; a CPU has no such limit.
TEST(Srht, RefusesLongRowsWhenPlannedForAGpu) {
  set_meta_device(c10::kCUDA);
  EXPECT_THROW(make_projection("srht", 60000, 8, 1, at::kMeta), InputError);
  make_projection("srht", 28672, 8, 1, at::kMeta);
  set_meta_device(c10::kCPU);
  make_projection("srht", 60000, 8, 1, at::kMeta);
}

}  // namespace
}  // namespace compact
