// SPDX-License-Identifier: Apache-2.0
#include "compact/io/png.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>

#include "tests/full_disk.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

// As another program reads it.
at::Tensor read(const std::filesystem::path& path, bool grey) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  EXPECT_NE(png_image_begin_read_from_file(&image, path.c_str()), 0) << image.message;
  EXPECT_EQ((image.format & PNG_FORMAT_FLAG_COLOR) == 0, grey);
  image.format = grey ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  std::vector<int64_t> sizes = {image.height, image.width};
  if (!grey) sizes.push_back(3);
  at::Tensor picture = at::empty(sizes, at::kByte);
  EXPECT_NE(png_image_finish_read(&image, nullptr, picture.data_ptr(), 0, nullptr), 0);
  return picture;
}

TEST(Png, GivesBackEveryPixel) {
  const TemporaryFolder folder;
  for (const bool grey : {true, false}) {
    const std::vector<int64_t> sizes =
        grey ? std::vector<int64_t>{7, 130} : std::vector<int64_t>{7, 130, 3};
    const at::Tensor picture = at::randint(0, 256, sizes, at::kByte);
    write_png(folder / "a.png", picture);
    EXPECT_TRUE(read(folder / "a.png", grey).equal(picture));
    const at::Tensor view = picture.transpose(0, 1);  // not in order
    write_png(folder / "a.png", view);
    EXPECT_TRUE(read(folder / "a.png", grey).equal(view));
  }
}

TEST(Png, RefusesOtherTensors) {
  const TemporaryFolder folder;
  const auto refuses = [&](const at::Tensor& t) {
    return !error_of([&] { write_png(folder / "a.png", t); }).empty();
  };
  EXPECT_TRUE(refuses(at::zeros({2, 2})));
  EXPECT_TRUE(refuses(at::zeros({2, 2, 4}, at::kByte)));
  EXPECT_TRUE(refuses(at::zeros({0, 2}, at::kByte)));
  EXPECT_TRUE(refuses(at::zeros({1, 65536}, at::kByte)));
  EXPECT_TRUE(folder.names().empty());
  const std::string text = error_on_full_disk(100, [&] {
    write_png(folder / "a.png", at::randint(0, 256, {99, 99}, at::kByte));
  });
  EXPECT_THAT(text, ::testing::HasSubstr("a.png"));
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace compact
