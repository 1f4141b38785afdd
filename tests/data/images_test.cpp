// SPDX-License-Identifier: Apache-2.0
#include "compact/data/images/images.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "compact/base/check.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class Images : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) {
    const std::string path = (folder_ / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  static std::string record(int label, char pixel) {
    return std::string(1, static_cast<char>(label)) + std::string(3072, pixel);
  }
  static std::string number(uint32_t n) {
    std::string s;
    for (int shift = 24; shift >= 0; shift -= 8) s += static_cast<char>(n >> shift);
    return s;
  }
  void refused(const std::function<void()>& read, const std::string& rule) {
    EXPECT_THAT(read, ThrowsMessage<InputError>(HasSubstr(rule)));
  }
  TemporaryFolder folder_;
};

TEST_F(Images, CifarRecordsFollowEachOther) {
  const std::string first = write("a.bin", record(3, 'a') + record(9, 'b'));
  const std::string second = write("b.bin", record(0, '\xff'));
  const LabelledImages all = read_cifar10(std::vector{first, second});
  EXPECT_EQ(all.images.sizes(), at::IntArrayRef({3, 3, 32, 32}));
  EXPECT_TRUE(at::equal(all.labels, at::tensor({3, 9, 0}, at::kLong)));
  EXPECT_EQ(all.images[1][2][31][31].item<int>(), 'b');
  EXPECT_EQ(all.images[2].min().item<int>(), 255);
}

TEST_F(Images, CifarRefusesBrokenFiles) {
  const std::string cut = write("cut.bin", record(1, 'a') + "xyz");
  refused([&] { read_cifar10(std::vector{cut}); }, "number 1 has 3");
  const std::string label = write("label.bin", record(1, 'a') + record(10, 'a'));
  refused([&] { read_cifar10(std::vector{label}); }, "that of image 1 is 10");
  refused([&] { read_cifar10({}); }, "at least one file");
  EXPECT_THROW(read_cifar10(std::vector{(folder_ / "none").string()}), InputError);
  EXPECT_THROW(read_cifar10(std::vector{write("empty.bin", "")}), InputError);
  EXPECT_THROW(read_cifar10(std::vector{write("no.gz", "not gzip")}), InputError);
}

TEST_F(Images, IdxImagesAndLabels) {
  const std::string images =
      write("images", number(0x803) + number(2) + number(2) + number(3) + "abcdefghijkl");
  const std::string labels = write("labels", number(0x801) + number(2) + "\x01\x09");
  const LabelledImages all = read_idx(images, labels);
  EXPECT_EQ(all.images.sizes(), at::IntArrayRef({2, 1, 2, 3}));
  EXPECT_EQ(all.images[1][0][1][2].item<int>(), 'l');
  EXPECT_EQ(all.labels[1].item<int64_t>(), 9);
}

// Whatever classes a file has, and in whatever order.
TEST(LabelledImagesTest, LabelsFollowTheNamesOfClasses) {
  const LabelledImages data{.images = at::zeros({4, 1, 2, 2}, at::kByte),
                            .labels = at::tensor({0, 1, 1, 0}, at::kLong),
                            .classes = 2,
                            .class_names = {"cat", "dog"}};
  const LabelledImages other = with_classes(data, {"bird", "dog", "cat"});
  EXPECT_TRUE(other.labels.equal(at::tensor({2, 1, 1, 2}, at::kLong)));
  EXPECT_EQ(other.classes, 3);
  EXPECT_TRUE(with_classes(data, {"cat", "dog"}).labels.equal(data.labels));
  EXPECT_TRUE(with_classes(data, {}).labels.equal(data.labels));
  EXPECT_THROW(with_classes(data, {"cat", "bird"}), InputError);
}

TEST_F(Images, IdxRefusesBrokenFiles) {
  const std::string labels = write("labels", number(0x801) + number(2) + "\x01\x09");
  const auto images = [&](const std::string& bytes) { return write("images", bytes); };
  const std::string start = number(0x803) + number(2) + number(2) + number(3);
  refused([&] { read_idx(images(start + "abc"), labels); }, "12 bytes must follow");
  refused([&] { read_idx(images(start + std::string(13, 'a')), labels); }, "there are more");
  refused([&] { read_idx(images(number(0x803) + "ab"), labels); }, "ends before");
  refused([&] { read_idx(images(number(0x1234) + start), labels); }, "begins with the number");
  refused([&] { read_idx(images(number(0x803) + number(2) + number(0) + number(3)), labels); },
          "must be from 1 to 4096");
  refused(
      [&] {
        read_idx(images(number(0x803) + number(1u << 20) + number(4096) + number(4096)), labels);
      },
      "of pixels");
  refused(
      [&] {
        read_idx(images(number(0x803) + number(1) + number(2) + number(3) + "abcdef"), labels);
      },
      "has 1 images");
  refused([&] { read_idx(images(start + std::string(12, 'a')), labels, 5); },
          "labels must be below 5");
}

}  // namespace
}  // namespace compact
