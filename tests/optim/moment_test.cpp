// SPDX-License-Identifier: Apache-2.0
// Moments in 8-bit floats: sizes, range, unbiased rounding.
#include "compact/optim/moment.h"

#include <gtest/gtest.h>

#include <cmath>

#include "compact/base/check.h"
#include "tests/optim/toy.h"

namespace compact {
namespace {

Moment f8(at::IntArrayRef sizes, bool is_signed) {
  return {sizes, at::TensorOptions(), {MomentType::kFloat8}, is_signed};
}

TEST(Moment, TakesOneByteAndAPowerForEach256) {
  EXPECT_EQ(f8({3, 256}, true).nbytes(), 3 * 256 + 3 * 4);
  EXPECT_EQ(f8({3, 257}, true).nbytes(), 3 * 257 + 3 * 2 * 4);
  EXPECT_EQ(f8({1000}, false).nbytes(), 1000 + 4 * 4);
  EXPECT_EQ(Moment({5, 3}, at::TensorOptions(), {MomentType::kBFloat16}, true).nbytes(), 30);
}

TEST(Moment, LivesInTensorsThatAreThere) {
  const Moment made = f8({3, 257}, true);
  at::Tensor x = at::full({3, 257}, -0.5f);
  made.write(0, x, 7);
  const Moment same(made.value(), made.scales(), true);
  EXPECT_TRUE(at::equal(same.read(0, 3), x));
  same.write(0, at::ones({3, 257}), 7);
  EXPECT_EQ(made.read(2, 1)[0][256].item<float>(), 1);
  EXPECT_EQ(Moment(at::zeros({5}), {}, false).nbytes(), 20);
  EXPECT_EQ(Moment(at::zeros({0, 300}, at::kByte), at::zeros({0, 2}), true).rows(), 0);
  EXPECT_THROW(Moment(at::Tensor(), {}, true), InputError);
  EXPECT_THROW(Moment(at::zeros({4, 4}).t()[0], {}, true), InputError);
  EXPECT_THROW(Moment(at::zeros({4, 4}, at::kHalf), {}, true), InputError);
  EXPECT_THROW(Moment(made.value(), {}, true), InputError);
  EXPECT_THROW(Moment(at::zeros({3, 257}), made.scales(), true), InputError);
  EXPECT_THROW(Moment(made.value(), at::zeros({3, 1}), true), InputError);
  EXPECT_THROW(Moment(made.value(), at::zeros({3, 2}, at::kBFloat16), true), InputError);
}

// Every value between two codes comes out as one of them, and on average as itself. 261,120 draws:
// five standard errors of a draw between values `unit` apart are at most 5 * unit / 2 / 510.
TEST(Moment, RoundsWithoutBias) {
  constexpr int64_t kRows = 1024, kWidth = 256;
  for (const bool is_signed : {true, false}) {
    const Moment m = f8({kRows, kWidth}, is_signed);
    for (const float value : {1.0f, 0.77f, 0.031f, 1e-3f, 3.1e-5f}) {
      at::Tensor x = at::full({kRows, kWidth}, is_signed ? -value : value);
      x.select(1, 0).fill_(1);
      m.write(0, x, 3);
      const at::Tensor got = m.read(0, kRows).slice(1, 1).abs();
      // Three bits of mantissa; below 2^-15 of the block's power equal steps of 2^-18.
      const double unit = std::max<double>(std::exp2(std::floor(std::log2(value)) - 3),
                                           is_signed ? std::exp2(-16) : 0);
      EXPECT_LE((got - value).abs().max().item<double>(), unit) << value;
      EXPECT_NEAR(got.to(at::kDouble).mean().item<double>(), value, 5 * unit / 2 / 510) << value;
    }
  }
}

// An overflow in one place leaves its neighbours as they would be without it.
TEST(Moment, AnInfinityIsAlone) {
  for (const bool is_signed : {true, false}) {
    const Moment m = f8({1, 300}, is_signed);
    at::Tensor x = at::full({1, 300}, is_signed ? -1e-5f : 1e-5f);
    m.write(0, x, 3);
    const at::Tensor without = m.read(0, 1).clone();
    x[0][5] = is_signed ? -INFINITY : INFINITY;
    m.write(0, x, 3);
    at::Tensor got = m.read(0, 1);
    EXPECT_TRUE(got[0][5].isinf().item<bool>());
    EXPECT_EQ(got[0][5].item<float>() < 0, is_signed);
    got[0][5] = without[0][5];
    EXPECT_TRUE(at::equal(got, without));
    // Beside nothing but zeros; a finite number that does not fit stays finite.
    at::Tensor y = at::zeros({1, 300});
    y[0][7] = INFINITY;
    m.write(0, y, 3);
    EXPECT_TRUE(at::equal(m.read(0, 1), y));
    y[0][8] = 3e38f;
    m.write(0, y, 3);
    got = m.read(0, 1);
    EXPECT_TRUE(got[0][7].isinf().item<bool>());
    EXPECT_EQ(got[0][8].item<float>(), 0.875f * 0x1p126f);
  }
}

TEST(Moment, KeepsWhatIsSmallAndShowsWhatIsBroken) {
  const Moment v = f8({1, 256}, false);
  at::Tensor x = at::full({1, 256}, 1e-30f);
  x[0][0] = 1;
  x[0][1] = 0;
  v.write(0, x, 3);
  const at::Tensor got = v.read(0, 1);
  EXPECT_EQ(got[0][1].item<float>(), 0);
  EXPECT_GT(got[0][2].item<float>(), 0) << "a second moment of 0 makes steps infinite";
  x[0][5] = NAN;
  v.write(0, x, 3);
  EXPECT_TRUE(v.read(0, 1).isnan().all().item<bool>());
  v.write(0, at::zeros({1, 256}), 3);
  EXPECT_TRUE(at::equal(v.read(0, 1), at::zeros({1, 256})));
}

}  // namespace
}  // namespace compact
