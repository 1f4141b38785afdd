// SPDX-License-Identifier: Apache-2.0
#include "compact/data/images/resize_images.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "tests/data/files.h"

namespace compact {
namespace {

TEST(ResizedImages, ShowTheMiddle) {
  // Three squares of 4 x 4 beside each other, then the same in large.
  const at::Tensor squares =
      at::cat({at::full({2, 1, 4, 4}, 10, at::kByte), at::full({2, 1, 4, 4}, 90, at::kByte),
               at::full({2, 1, 4, 4}, 200, at::kByte)},
              3);
  EXPECT_TRUE(resized(squares, {4, 12}).is_same(squares));
  EXPECT_TRUE(resized(squares, {4, 4}).equal(at::full({2, 1, 4, 4}, 90, at::kByte)));
  // Scaled first, so that the borders of squares mix.
  EXPECT_TRUE(resized(squares.transpose(2, 3), {8, 8})
                  .narrow(2, 1, 6)
                  .equal(at::full({2, 1, 6, 8}, 90, at::kByte)));
  const at::Tensor large = squares.repeat_interleave(8, 2).repeat_interleave(8, 3);
  const at::Tensor back = resized(large, {4, 12});
  EXPECT_EQ(back.sizes(), squares.sizes());
  for (const int64_t column : {1, 5, 6, 10}) {  // away from the borders between squares
    EXPECT_TRUE(back.select(3, column).equal(squares.select(3, column))) << column;
  }
  // A fine pattern becomes its mean.
  const at::Tensor stripes = at::tensor({0, 200}, at::kByte).repeat({1, 1, 64, 32});
  EXPECT_LE((resized(stripes, {8, 8}).to(at::kInt) - 100).abs().max().item<int>(), 6);
  EXPECT_THAT(one_line_error_of([&] { resized(squares, {0, 4}); }), HasSubstr("is 0 x 4"));
}

TEST(ResizedImages, MayBeStretchedAndCut) {
  const at::Tensor wide =
      at::cat({at::full({1, 1, 4, 4}, 10, at::kByte), at::full({1, 1, 4, 4}, 200, at::kByte)}, 3);
  const at::Tensor stretched = resized(wide, {4, 4}, {.stretch = true});
  EXPECT_TRUE(stretched.select(3, 0).equal(at::full({1, 1, 4}, 10, at::kByte)));
  EXPECT_TRUE(stretched.select(3, 3).equal(at::full({1, 1, 4}, 200, at::kByte)));
  // Half of what is scaled to 8 x 8: an image of that size is cut alone.
  const at::Tensor image = at::arange(64).to(at::kByte).view({1, 1, 8, 8});
  EXPECT_TRUE(resized(image, {4, 4}, {.middle = 0.5}).equal(image.narrow(2, 2, 4).narrow(3, 2, 4)));
  EXPECT_TRUE(is_changed({4, 4}, {4, 4}, {.middle = 0.5}));
  EXPECT_FALSE(is_changed({4, 4}, {4, 4}, {.stretch = true, .bicubic = true}));
  // Bicubic goes beyond what there is, bilinear does not.
  const at::Tensor edge =
      at::cat({at::full({1, 1, 4, 4}, 100, at::kByte), at::full({1, 1, 4, 4}, 200, at::kByte)}, 3);
  EXPECT_EQ(resized(edge, {8, 16}).max().item<int>(), 200);
  EXPECT_GT(resized(edge, {8, 16}, {.bicubic = true}).max().item<int>(), 200);
  EXPECT_THAT(one_line_error_of([&] {
                resized(image, {4, 4}, {.middle = 0});
              }),
              HasSubstr("the middle must be above 0 and at most 1, is 0"));
}

TEST(ResizedImages, AreAsManyHoweverManyThereAre) {
  const at::Tensor images = at::arange(600).remainder(256).to(at::kByte).view({600, 1, 1, 1});
  const at::Tensor all = images.expand({600, 3, 5, 9}).contiguous();
  EXPECT_TRUE(resized(all, {7, 2}).equal(images.expand({600, 3, 7, 2})));
}

TEST(ResizedImages, AreSaidInALine) {
  EXPECT_EQ(resized_text("a.zip", 20, {64, 48}, {32, 32}),
            "a.zip: 20 images, the first of 64 x 48 pixels, were scaled to 32 x 32");
  EXPECT_EQ(resized_text("a.zip", 1, {64, 48}, {32, 32}),
            "a.zip: 1 image, of 64 x 48 pixels, was scaled to 32 x 32");
}

}  // namespace
}  // namespace compact
