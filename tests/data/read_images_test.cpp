// SPDX-License-Identifier: Apache-2.0
#include "compact/data/images/read_images.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <filesystem>

#include "tests/data/archives.h"
#include "tests/data/files.h"

namespace compact::test {
namespace {

std::string big_endian(uint32_t n) {
  std::string s;
  for (int shift = 24; shift >= 0; shift -= 8) s += static_cast<char>(n >> shift);
  return s;
}

class ReadImages : public testing::Test {
 protected:
  std::string put(const std::string& name, const std::string& bytes) {
    return write_file(folder_ / name, bytes);
  }
  static std::string idx_images(char pixel) {
    return big_endian(0x803) + big_endian(2) + big_endian(2) + big_endian(3) +
           std::string(12, pixel);
  }
  static std::string idx_labels(const std::string& labels) {
    return big_endian(0x801) + big_endian(2) + labels;
  }
  static LabelledImages read_archive(const std::vector<std::string>& paths) {
    return read_images(paths);
  }
  static std::string archive_error(const std::vector<std::string>& paths) {
    return one_line_error_of([&] { read_images(paths); });
  }
  TextFolder folder_;
};

TEST_F(ReadImages, IdxWithTheLabelsBesideIt) {
  const std::string train = put("train-images-idx3-ubyte.gz", compressed(idx_images('a'), ".gz"));
  put("train-labels-idx1-ubyte.gz", compressed(idx_labels("\x01\x02"), ".gz"));
  const std::string test = put("t10k-images-idx3-ubyte", idx_images('b'));
  put("t10k-labels-idx1-ubyte.xz", compressed(idx_labels("\x03\x04"), ".xz"));
  const LabelledImages all = read_archive({train, test});
  EXPECT_EQ(all.images.sizes(), at::IntArrayRef({4, 1, 2, 3}));
  EXPECT_TRUE(at::equal(all.labels, at::tensor({1, 2, 3, 4}, at::kLong)));
  EXPECT_EQ(all.images[3].max().item<int>(), 'b');
  EXPECT_TRUE(all.class_names.empty());
  EXPECT_THAT(archive_error({put("alone-images-idx3-ubyte", idx_images('c'))}),
              HasSubstr("alone-labels-idx1-ubyte[.gz|.xz|.zst], there are none"));
}

TEST_F(ReadImages, RecordsAndArchives) {
  const std::string record = "\x05" + std::string(3072, 'x');
  const std::string first = put("a.bin", record),
                    second = put("b.bin.gz", compressed(record, ".gz"));
  EXPECT_EQ(read_archive({first, second}).images.sizes(), at::IntArrayRef({2, 3, 32, 32}));
  const std::string zip = put("a.zip", archive_of({{"x/0.jpg", colour(1, 2, 3, 32, 32)}}, "zip"));
  const std::string tgz =
      put("b.tgz", archive_of({{"x/0.jpg", colour(1, 2, 3, 32, 32)}}, "ustar", "gzip"));
  const LabelledImages all = read_archive({zip, tgz});
  EXPECT_EQ(all.images.sizes(), at::IntArrayRef({2, 3, 32, 32}));
  EXPECT_THAT(all.class_names, ElementsAre("x"));
  EXPECT_THAT(archive_error({zip, first}), HasSubstr("are not the 1 of"));
  const std::string other = put("c.tar", archive_of({{"y/0.jpg", colour(1, 2, 3, 32, 32)}}, "pax"));
  EXPECT_THAT(archive_error({zip, other}), HasSubstr("classes are not"));
  const std::string small = put("d.tar", archive_of({{"x/0.jpg", colour(1, 2, 3)}}, "pax"));
  EXPECT_THAT(archive_error({zip, small}), HasSubstr("[3, 8, 8]"));
}

TEST_F(ReadImages, OfEveryFormComeInTheSizeAskedFor) {
  const std::string idx = put("train-images-idx3-ubyte", idx_images('a'));
  put("train-labels-idx1-ubyte", idx_labels("\x01\x02"));
  const std::vector<std::string> one = {idx};
  const LabelledImages grey = read_images(one, ImageSize{4, 4});
  EXPECT_TRUE(grey.images.equal(at::full({2, 1, 4, 4}, 'a', at::kByte)));
  EXPECT_THAT(grey.scaled,
              ElementsAre(idx + ": 2 images, the first of 2 x 3 pixels, were scaled to 4 x 4"));
  EXPECT_TRUE(read_images(one, ImageSize{2, 3}).scaled.empty());
  const std::vector<std::string> records = {put("a.bin", "\x05" + std::string(3072, 'x'))};
  const LabelledImages small = read_images(records, ImageSize{8, 8});
  EXPECT_TRUE(small.images.equal(at::full({1, 3, 8, 8}, 'x', at::kByte)));
  EXPECT_THAT(small.scaled, ElementsAre(HasSubstr("1 image, of 32 x 32 pixels, was scaled")));
  const std::vector<std::string> both = {
      put("a.zip", archive_of({{"x/0.jpg", colour(1, 2, 3, 32, 32)}}, "zip")),
      put("b.tar", archive_of({{"x/0.jpg", colour(1, 2, 3, 8, 16)}}, "pax"))};
  const LabelledImages all = read_images(both, ImageSize{8, 8});
  EXPECT_EQ(all.images.sizes(), at::IntArrayRef({2, 3, 8, 8}));
  EXPECT_EQ(all.scaled.size(), 2u);
}

TEST_F(ReadImages, OtherNamesAreToldWhatIsRead) {
  for (const char* name : {"images.png", "data", "train-labels-idx1-ubyte.gz", "x.tar.7z"}) {
    const std::string text = archive_error({put(name, "x")});
    EXPECT_THAT(text, HasSubstr(name));
    EXPECT_THAT(text, HasSubstr("read are NAME-images-idx3-ubyte[.gz]"));
  }
  EXPECT_THAT(archive_error({}), HasSubstr("at least one file"));
}

TEST_F(ReadImages, FashionMnist) {
  const std::string folder = "/usr/share/datasets/fashion-mnist/";
  const std::vector<std::string> train = {folder + "train-images-idx3-ubyte.gz"},
                                 test = {folder + "t10k-images-idx3-ubyte.gz"};
  if (!std::filesystem::exists(train[0])) {
    GTEST_SKIP() << "no " << train[0] << " (Debian's package dataset-fashion-mnist)";
  }
  const LabelledImages all = read_images(train), other = read_images(test);
  EXPECT_EQ(all.images.sizes(), at::IntArrayRef({60000, 1, 28, 28}));
  EXPECT_EQ(other.images.sizes(), at::IntArrayRef({10000, 1, 28, 28}));
  EXPECT_TRUE(at::equal(at::bincount(all.labels), at::full({10}, 6000, at::kLong)));
  // The published mean of Fashion-MNIST's training images.
  EXPECT_NEAR(all.images.to(at::kFloat).mean().item<double>() / 255, .2860, 1e-4);
}

}  // namespace
}  // namespace compact::test
