// SPDX-License-Identifier: Apache-2.0
#include "compact/data/images/image_dataset.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "compact/base/check.h"

namespace compact {
namespace {

// Image i has the pixels i, i + 1, ... row by row; its label is i mod 3.
LabelledImages counted(int64_t count, int64_t channels = 2, int64_t side = 4) {
  LabelledImages data;
  const at::Tensor first = at::arange(count).view({count, 1, 1, 1});
  data.images = (first + at::arange(side * side).view({1, 1, side, side}))
                    .expand({count, channels, side, side})
                    .to(at::kByte)
                    .contiguous();
  data.labels = at::arange(count).remainder(3);
  data.classes = 3;
  return data;
}

std::vector<int64_t> first_numbers(int64_t count) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(i);
  return all;
}

const PixelStatistics kPlain{.mean = {0, 0}, .deviation = {1, 1}};

TEST(ImageDataset, StatisticsAreThoseOfThePixels) {
  const LabelledImages data = counted(10);
  const PixelStatistics s = pixel_statistics(data.images);
  const at::Tensor x = data.images.to(at::kDouble) / 255;
  for (const int64_t c : {0, 1}) {
    EXPECT_NEAR(s.mean[c], x.select(1, c).mean().item<double>(), 1e-12);
    EXPECT_NEAR(s.deviation[c], x.select(1, c).std(false).item<double>(), 1e-9);
  }
  EXPECT_EQ(pixel_statistics(at::full({2, 1, 3, 3}, 7, at::kByte)).deviation[0], 1);
  EXPECT_THROW(pixel_statistics(at::empty({0, 3, 4, 4}, at::kByte)), InputError);
}

TEST(ImageDataset, InOrderGivesNormalisedImagesAsTheyAre) {
  const ImageDataset data(counted(5), {4, 2}, {.mean = {.5, .25}, .deviation = {.1, .2}},
                          {.shift = 1, .mirror = true}, 1);
  const Batch b = data.in_order(0, 2);
  EXPECT_TRUE(b.target.equal(at::tensor({1, 2}, at::kLong)));
  const at::Tensor x =
      counted(5).images.index_select(0, at::tensor({4, 2}, at::kLong)).to(at::kFloat) / 255;
  EXPECT_TRUE(at::allclose(b.input.select(1, 0), (x.select(1, 0) - .5) / .1, 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(b.input.select(1, 1), (x.select(1, 1) - .25) / .2, 1e-5, 1e-5));
}

// Every training image is one of the windows, mirrored or not; all of them occur.
TEST(ImageDataset, AugmentationShiftsAndMirrors) {
  ImageDataset data(counted(1), {0}, kPlain, {.shift = 1, .mirror = true}, 3);
  const at::Tensor image = counted(1).images.to(at::kFloat) / 255;
  const at::Tensor padded = at::constant_pad_nd(image, {1, 1, 1, 1});
  std::vector<int> seen(18);
  for (int i = 0; i < 600; ++i) {
    const at::Tensor x = data.next(1).input;
    int found = -1;
    for (int kind = 0; kind < 18; ++kind) {
      at::Tensor window = padded.narrow(2, kind / 2 / 3, 4).narrow(3, kind / 2 % 3, 4);
      if (kind % 2) window = window.flip(3);
      if (at::allclose(x, window)) found = kind;
    }
    ASSERT_GE(found, 0) << x;
    ++seen[found];
  }
  // 600 draws of 18: fewer than 8 or more than 70 of one kind has a chance below 1e-5.
  for (const int count : seen) EXPECT_TRUE(count >= 8 && count <= 70) << count;
}

TEST(ImageDataset, PositionsContinueExactly) {
  const auto make = [] {
    return ImageDataset(counted(7), first_numbers(7), kPlain, {.shift = 1, .mirror = true}, 5);
  };
  ImageDataset whole = make();
  for (int i = 0; i < 3; ++i) whole.next(4);
  const DataPosition here = whole.position();
  EXPECT_EQ(here, (DataPosition{1, 5}));
  const Batch want = whole.next(4);
  ImageDataset resumed = make();
  resumed.seek(here);
  const Batch got = resumed.next(4);
  EXPECT_TRUE(got.input.equal(want.input));
  EXPECT_TRUE(got.target.equal(want.target));
  // The same image has another window in another epoch.
  ImageDataset first = make(), second = make();
  second.seek({1, 0});
  EXPECT_FALSE(first.next(7).input.equal(second.next(7).input));
}

TEST(ImageDataset, RefusesWhatItCannotHave) {
  EXPECT_THROW(ImageDataset(counted(3), {}, kPlain, {}, 1), InputError);
  EXPECT_THROW(ImageDataset(counted(3), {0}, {.mean = {0}, .deviation = {1}}, {}, 1), InputError);
  EXPECT_THROW(ImageDataset(counted(3), {0}, kPlain, {.shift = -1}, 1), InputError);
}

}  // namespace
}  // namespace compact
