// SPDX-License-Identifier: Apache-2.0
#include "compact/data/images/image_archive.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <zlib.h>

#include <filesystem>

#include "compact/base/philox.h"
#include "compact/data/images/orientation.h"
#include "compact/data/images/read_images.h"
#include "tests/data/archives.h"
#include "tests/data/files.h"

namespace compact::test {
namespace {

class ImageArchive : public testing::Test {
 protected:
  LabelledImages read_archive(const std::string& bytes) {
    return read_image_archive(write_file(folder_ / "images.tar", bytes));
  }
  std::string archive_error(const std::string& bytes) {
    return one_line_error_of([&] { read_archive(bytes); });
  }
  std::string archive_error(const std::vector<Member>& members) {
    return archive_error(archive_of(members, "pax"));
  }
  TextFolder folder_;
};

const std::vector<Member>& small_set() {
  static const std::vector<Member> members = {
      {"train/", "", AE_IFDIR},
      {"train/dog/", "", AE_IFDIR},
      {"train/dog/0.jpg", colour(250, 10, 20)},
      {"train/dog/.hidden", "not an image"},
      {"train/dog/Thumbs.db", "not an image"},
      {"train/ant/Desktop.ini", "not an image"},
      {"__MACOSX/train/dog/0.jpg", "not an image"},
      {"train/__MACOSX/dog/0.jpg", "not an image"},
      {"train/ant/0.JPEG", jpeg_of(8, 8, {77})},
      {"train/dog/1.jpg", jpeg_of(8, 8, {10, 20, 250}, JpegForm::kProgressive)},
  };
  return members;
}

void expect_small_set(const LabelledImages& all) {
  EXPECT_EQ(all.images.sizes(), at::IntArrayRef({3, 3, 8, 8}));
  EXPECT_EQ(all.images.scalar_type(), at::kByte);
  EXPECT_EQ(all.classes, 2);
  EXPECT_THAT(all.class_names, ElementsAre("ant", "dog"));
  EXPECT_TRUE(at::equal(all.labels, at::tensor({1, 0, 1}, at::kLong)));
  const int64_t expected[3][3] = {{250, 10, 20}, {77, 77, 77}, {10, 20, 250}};
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t c = 0; c < 3; ++c) {
      const at::Tensor far = all.images[i][c].to(at::kLong).sub(expected[i][c]).abs().max();
      EXPECT_LE(far.item<int64_t>(), 3) << i << " " << c;
    }
  }
}

TEST_F(ImageArchive, TarAndZipHoweverCompressed) {
  for (const char* filter : {"none", "gzip", "bzip2", "xz", "zstd", "lz4"}) {
    SCOPED_TRACE(filter);
    expect_small_set(read_archive(archive_of(small_set(), "pax", filter)));
  }
  expect_small_set(read_archive(archive_of(small_set(), "ustar")));
  expect_small_set(read_archive(archive_of(small_set(), "zip")));
}

TEST_F(ImageArchive, WithoutAFolderAbove) {
  const LabelledImages all = read_archive(
      archive_of({{"./b/0.jpg", colour(1, 2, 3)}, {"./a//1.jpg", colour(1, 2, 3)}}, "ustar"));
  EXPECT_THAT(all.class_names, ElementsAre("a", "b"));
  EXPECT_TRUE(at::equal(all.labels, at::tensor({1, 0}, at::kLong)));
}

TEST_F(ImageArchive, NamesOfOtherAlphabets) {
  const std::vector<Member> members = {{"\u00fc/0.jpg", colour(1, 2, 3)},
                                       {"\u4e2d/0.jpg", colour(1, 2, 3)}};
  for (const char* format : {"ustar", "pax", "zip"}) {
    EXPECT_THAT(read_archive(archive_of(members, format)).class_names,
                ElementsAre("\u00fc", "\u4e2d"))
        << format;
  }
  // As most programs write it: with the mark that names are UTF-8.
  std::string zip = archive_of(members, "zip");
  for (const auto& [header, flags] : {std::pair("PK\3\4", 6), std::pair("PK\1\2", 8)}) {
    for (size_t at = zip.find(header); at != zip.npos; at = zip.find(header, at + 4)) {
      zip[at + flags + 1] |= 8;
    }
  }
  EXPECT_THAT(read_archive(zip).class_names, ElementsAre("\u00fc", "\u4e2d"));
}

TEST_F(ImageArchive, RowsAndColumnsKeepTheirPlaces) {
  const LabelledImages all = read_archive(archive_of(
      {{"a/0.jpg", colour(9, 9, 9, 3, 5)}, {"a/1.jpg", colour(200, 0, 0, 3, 5)}}, "ustar"));
  EXPECT_EQ(all.images.sizes(), at::IntArrayRef({2, 3, 5, 3}));
  EXPECT_GT(all.images[1][0].min().item<int>(), 190);
  EXPECT_LT(all.images[1].slice(0, 1).max().item<int>(), 10);
}

TEST_F(ImageArchive, CutAnywhere) {
  for (const char* filter : {"gzip", "bzip2", "xz", "zstd", "lz4"}) {
    const std::string whole = archive_of(small_set(), "ustar", filter);
    for (size_t size = 0; size < whole.size(); ++size) {
      ASSERT_NE(archive_error(whole.substr(0, size)), "") << filter << " " << size;
    }
  }
  const std::string zip = archive_of(small_set(), "zip");
  for (size_t size = 0; size < zip.size(); ++size) {
    ASSERT_NE(archive_error(zip.substr(0, size)), "") << "zip " << size;
  }
  // Bytes after the first block of zeros at the end are padding.
  const std::string tar = archive_of(small_set(), "ustar");
  const size_t end = (tar.find_last_not_of('\0') + 511) / 512 * 512;
  for (size_t size = 0; size <= end; size += size % 512 == 0 || size % 512 == 511 ? 1 : 73) {
    ASSERT_NE(archive_error(tar.substr(0, size)), "") << "tar " << size;
  }
}

TEST_F(ImageArchive, ImagesOfSeveralSizesAreBroughtToOne) {
  const std::string bytes = archive_of({{"a/0.jpg", colour(200, 10, 10, 8, 8)},
                                        {"a/1.jpg", colour(10, 200, 10, 30, 20)},
                                        {"b/2.jpg", colour(10, 10, 200, 3, 4096)}},
                                       "zip");
  EXPECT_THAT(archive_error(bytes), HasSubstr("the first is 8 x 8, this 20 x 30"));
  const std::string path = write_file(folder_ / "images.zip", bytes);
  const LabelledImages all = read_image_archive(path, ImageSize{8, 8});
  EXPECT_EQ(all.images.sizes(), at::IntArrayRef({3, 3, 8, 8}));
  EXPECT_TRUE(at::equal(all.labels, at::tensor({0, 0, 1}, at::kLong)));
  EXPECT_THAT(all.scaled, ElementsAre(path + ": 2 images, the first of 20 x 30 pixels, were "
                                             "scaled to 8 x 8"));
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_GT(all.images[i][i].min().item<int>(), 180) << i;
    EXPECT_LT(all.images[i][(i + 1) % 3].max().item<int>(), 30) << i;
  }
}

TEST_F(ImageArchive, DamagedAnywhereIsAnErrorOrAnImage) {
  int64_t refused = 0;
  for (const char* kind : {"ustar", "zip", "pax"}) {
    const std::string whole =
        archive_of(small_set(), kind, std::string(kind) == "pax" ? "xz" : "none");
    for (uint64_t i = 0; i < 1500; ++i) {
      std::string damaged = whole;
      const Random4 r = philox(7, i);
      damaged[r.v[0] % damaged.size()] ^= static_cast<char>(1 + r.v[1] % 255);
      if (r.v[2] % 2) damaged[r.v[3] % damaged.size()] = static_cast<char>(r.v[2] >> 8);
      const std::string path = write_file(folder_ / "damaged.tar", damaged);
      refused += error_of([&] { read_image_archive(path); }) != "";
    }
  }
  EXPECT_GT(refused, 1500);
}

TEST_F(ImageArchive, RefusesWhatIsNoSetOfImages) {
  const std::string good = colour(1, 2, 3);
  EXPECT_THAT(archive_error(std::vector<Member>{{"a/", "", AE_IFDIR}}), HasSubstr("has no images"));
  EXPECT_THAT(archive_error({{"a/README.txt", "x"}}), HasSubstr("CLASS/NAME.jpg or .png only"));
  EXPECT_THAT(archive_error({{"0.jpg", good}}), HasSubstr("CLASS/NAME.jpg or .png only"));
  EXPECT_THAT(archive_error({{"train/a/0.jpg", good}, {"test/a/0.jpg", good}}),
              HasSubstr("in one folder, the first in `train/`"));
  EXPECT_THAT(archive_error({{"a/0.jpg", good}, {"a/1.jpg", colour(1, 2, 3, 8, 9)}}),
              HasSubstr("the first is 8 x 8, this 9 x 8"));
  EXPECT_THAT(archive_error({{"a/0.jpg", good}, {"./a/0.jpg", good}}), HasSubstr("is there twice"));
  EXPECT_THAT(archive_error("no archive at all, but some text"), HasSubstr("no whole archive"));
  EXPECT_THAT(archive_error(std::string(20480, '\0')), HasSubstr("has no images"));
  EXPECT_THAT(one_line_error_of([&] { read_image_archive(folder_.path()); }),
              HasSubstr("is a folder"));
  EXPECT_THAT(one_line_error_of([&] { read_image_archive(folder_ / "none.tar"); }),
              HasSubstr("none.tar: cannot be read"));
}

TEST_F(ImageArchive, RefusesTricksWithNames) {
  const std::string good = colour(1, 2, 3);
  EXPECT_THAT(archive_error({{"a/../../b/0.jpg", good}}), HasSubstr("without `..`"));
  EXPECT_THAT(archive_error({{"/a/0.jpg", good}}), HasSubstr("must be relative"));
  EXPECT_THAT(archive_error({{"a\\0.jpg", good}}), HasSubstr("backslashes"));
  EXPECT_THAT(archive_error({{"a/\x1b[31m\n0.jpg", good}}), HasSubstr("control characters"));
  EXPECT_THAT(archive_error({{"a/" + std::string(600, 'x') + ".jpg", good}}),
              HasSubstr("512 bytes"));
  EXPECT_THAT(archive_error({{"a/0.jpg", "", AE_IFLNK, "/etc/passwd"}}),
              HasSubstr("links are not read"));
  EXPECT_THAT(archive_error({{"a/1.jpg", good}, {"a/0.jpg", "", AE_IFREG, "a/1.jpg"}}),
              HasSubstr("links are not read"));
  EXPECT_THAT(archive_error({{"a/0.jpg", "", AE_IFIFO}}), HasSubstr("must be a file or folder"));
}

TEST_F(ImageArchive, RefusesBrokenImages) {
  const std::string good = jpeg_of(24, 24, {200, 30, 40});
  for (const auto form : {JpegForm::kBaseline, JpegForm::kProgressive, JpegForm::kScanPerColour}) {
    const std::string whole = jpeg_of(24, 24, {200, 30, 40}, form);
    for (size_t size = 0; size < whole.size(); ++size) {
      ASSERT_THAT(archive_error({{"a/0.jpg", whole.substr(0, size)}}), HasSubstr("member a/0.jpg"))
          << size;
    }
  }
  EXPECT_THAT(archive_error({{"a/0.jpg", "\x89PNG\r\n\x1a\n"}}), HasSubstr("no whole PNG"));
  EXPECT_THAT(archive_error({{"a/0.jpg", "GIF89a"}}), HasSubstr("Not a JPEG file"));
  EXPECT_THAT(archive_error({{"a/0.jpg", jpeg_of(4097, 1, {1})}}),
              HasSubstr("from 1 to 4096 pixels"));
  EXPECT_THAT(archive_error({{"a/0.jpg", jpeg_of(1, 4097, {1})}}), HasSubstr("are 4097 x 1"));
  EXPECT_THAT(archive_error({{"a/0.jpg", good + std::string(1 << 24, 'x')}}),
              HasSubstr("at most 16777216 bytes"));
  const size_t frame = good.find("\xff\xc0");
  ASSERT_NE(frame, good.npos);
  std::string giant = good;
  giant.replace(frame + 5, 4, "\xff\xdc\xff\xdc");
  EXPECT_THAT(archive_error({{"a/0.jpg", giant}}), HasSubstr("are 65500 x 65500"));
  std::string empty = good;
  empty.replace(frame + 5, 4, std::string(4, '\0'));
  EXPECT_THAT(archive_error({{"a/0.jpg", empty}}), HasSubstr("no whole JPEG"));
  std::string more_rows = good;
  more_rows[frame + 5] = 2;
  EXPECT_THAT(archive_error({{"a/0.jpg", more_rows}}), HasSubstr("no whole JPEG"));
}

// An archive as people have them: colours for printers, another form under the name, notes, what
// Windows leaves behind, one file cut short.
TEST_F(ImageArchive, LeavesOutOddFilesAndConvertsOthers) {
  const std::string good = colour(250, 10, 20);
  const std::vector<Member> members = {
      {"train/cat/0.jpg", good},
      {"train/cat/1.jpg", jpeg_of(8, 8, {200, 100, 50, 255})},
      {"train/cat/2.JPEG", png_of(8, 8, {1, 2, 3})},
      {"train/dog/3.png", png_of(8, 8, {77})},
      {"train/dog/4.jpg", jpeg_of(8, 8, {255, 0, 100, 128})},
      {"train/dog/5.png", png_of(8, 8, {9, 8, 7, 0})},
      {"train/dog/6.jpg", good.substr(0, good.size() / 2)},
      {"train/dog/thumbs.txt", "x"},
      {"classes.txt", "cat\ndog\n"},
  };
  const std::string path = write_file(folder_ / "images.tar", archive_of(members, "pax"));
  const LabelledImages all = read_image_archive(path, {}, {}, /*strict=*/false);
  EXPECT_TRUE(at::equal(all.labels, at::tensor({0, 0, 0, 1, 1, 1}, at::kLong)));
  const int64_t expected[6][3] = {{250, 10, 20}, {200, 100, 50}, {1, 2, 3},
                                  {77, 77, 77},  {128, 0, 50},   {9, 8, 7}};
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t c = 0; c < 3; ++c) {
      const at::Tensor far = all.images[i][c].to(at::kLong).sub(expected[i][c]).abs().max();
      EXPECT_LE(far.item<int64_t>(), 3) << i << " " << c;
    }
  }
  EXPECT_THAT(all.warnings, ElementsAre(testing::AllOf(
                                HasSubstr("3 of 9 files cannot be read and were left out"),
                                HasSubstr("the first: " + path + ": member train/dog/6.jpg"))));
}

// Bytes of EXIF data that say an orientation, in one order of bytes or the other.
std::string exif(int orientation, bool little) {
  const auto number = [&](int value, int bytes) {
    std::string out;
    for (int i = 0; i < bytes; ++i)
      out += static_cast<char>(value >> 8 * (little ? i : bytes - 1 - i));
    return out;
  };
  return (little ? "II" : "MM") + number(42, 2) + number(8, 4) + number(2, 2) + number(0x100, 2) +
         number(4, 2) + number(1, 4) + number(7, 4) + number(0x112, 2) + number(3, 2) +
         number(1, 4) + number(orientation, 2) + number(0, 2) + number(0, 4);
}

TEST_F(ImageArchive, TurnsPicturesAsExifSays) {
  const at::Tensor stored = at::arange(3 * 2 * 5, at::kByte).view({3, 2, 5});
  const at::Tensor t = stored.transpose(1, 2);
  const std::vector<at::Tensor> turned = {
      stored, stored.flip(2), stored.flip({1, 2}), stored.flip(1),
      t,      t.flip(2),      t.flip({1, 2}),      t.flip(1)};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const at::Tensor expected = turned[static_cast<size_t>(orientation) - 1].contiguous();
    const ImageSize sides = turned_size({2, 5}, orientation);
    EXPECT_EQ(sides, (ImageSize{expected.size(1), expected.size(2)}));
    at::Tensor out = at::zeros_like(expected);
    turn_planes(stored.const_data_ptr<uint8_t>(), {2, 5}, orientation,
                out.mutable_data_ptr<uint8_t>());
    EXPECT_TRUE(out.equal(expected)) << orientation;
    for (const bool little : {false, true}) {
      EXPECT_EQ(exif_orientation(exif(orientation, little)), orientation);
    }
  }
  const std::string whole = exif(6, true);
  for (size_t size = 0; size < whole.size() - 8; ++size) {
    EXPECT_EQ(exif_orientation(whole.substr(0, size)), 1) << size;
  }
  EXPECT_EQ(exif_orientation(exif(9, false)), 1);
  // A picture whose upper half is dark, held so that this half is right.
  std::string jpeg = halves_jpeg();
  const std::string data = std::string("Exif\0\0", 6) + exif(6, false);
  jpeg.insert(2, "\xff\xe1" + std::string(1, '\0') + static_cast<char>(data.size() + 2) + data);
  const LabelledImages all = read_archive(archive_of({{"a/0.jpg", jpeg}}, "pax"));
  EXPECT_EQ(all.images.sizes(), at::IntArrayRef({1, 3, 16, 32}));
  EXPECT_LE(all.images.narrow(3, 17, 15).max().item<int64_t>(), 3);
  EXPECT_GE(all.images.narrow(3, 0, 15).min().item<int64_t>(), 252);
  // A PNG of one row that is held upright, its chunk after that of the sides.
  const auto big = [](uint64_t value) {
    std::string out;
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift);
    return out;
  };
  const std::string chunk = "eXIf" + exif(6, false);
  std::string png = png_of(3, 1, {1, 2, 3});
  png.insert(33, big(chunk.size() - 4) + chunk +
                     big(::crc32(0, reinterpret_cast<const Bytef*>(chunk.data()),
                                 static_cast<uInt>(chunk.size()))));
  const at::Tensor upright = read_archive(archive_of({{"a/0.png", png}}, "pax")).images;
  EXPECT_EQ(upright.sizes(), at::IntArrayRef({1, 3, 3, 1}));
  EXPECT_TRUE(
      upright.equal(at::tensor({1, 2, 3}, at::kByte).view({1, 3, 1, 1}).expand({1, 3, 3, 1})));
}

// As Pillow converts them to RGB: grey of 16 bits is cut at 255.
TEST_F(ImageArchive, GreyOf16BitsIsCutAt255) {
  const auto deep = [](const std::string& rows) {
    std::string out;
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
    png_infop info = png_create_info_struct(png);
    png_set_write_fn(
        png, &out,
        [](png_structp p, png_bytep bytes, size_t size) {
          static_cast<std::string*>(png_get_io_ptr(p))
              ->append(reinterpret_cast<const char*>(bytes), size);
        },
        nullptr);
    png_set_IHDR(png, info, 4, 1, 16, PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(png, info);
    png_write_row(png, reinterpret_cast<png_const_bytep>(rows.data()));
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    return out;
  };
  const std::string png = deep(std::string("\0\0\0\xc8\1\0\x9c\x40", 8));
  const at::Tensor image = read_archive(archive_of({{"a/0.png", png}}, "pax")).images;
  EXPECT_TRUE(image.equal(
      at::tensor({0, 200, 255, 255}, at::kByte).view({1, 1, 1, 4}).expand({1, 3, 1, 4})));
}

// A file may repeat a scan as often as it likes, each as costly as the image is large.
TEST_F(ImageArchive, RefusesJpegsOfVeryManyScans) {
  const std::string whole = jpeg_of(24, 24, {200, 30, 40}, JpegForm::kScanPerColour);
  const size_t scan = whole.rfind("\xff\xda"), end = whole.size() - 2;
  const auto with = [&](int more) {
    std::string scans = whole.substr(0, end);
    for (int i = 0; i < more; ++i) scans += whole.substr(scan, end - scan);
    return archive_of({{"a/0.jpg", scans + "\xff\xd9"}}, "ustar");
  };
  EXPECT_EQ(read_archive(with(50)).images.size(0), 1);
  EXPECT_THAT(archive_error(with(200)), HasSubstr("more than 100 scans"));
}

TEST_F(ImageArchive, ImagesThatClaimMoreThanTheyHave) {
  std::string tar = archive_of({{"a/0.jpg", colour(1, 2, 3)}}, "ustar");
  tar.replace(124, 12, std::string("77777777777\0", 12));  // 8 GiB
  unsigned sum = 8 * ' ';
  for (size_t i = 0; i < 512; ++i) {
    if (i < 148 || i >= 156) sum += static_cast<unsigned char>(tar[i]);
  }
  char text[8];
  std::snprintf(text, sizeof text, "%06o", sum);
  tar.replace(148, 8, std::string(text, 7) + " ");
  EXPECT_THAT(archive_error(tar), HasSubstr("no whole archive"));
}

TEST_F(ImageArchive, CifarAsJpeg) {
  const std::string path = shared_data("vision/cifar10-jpeg-train.tar.xz");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path << " (COMPACT_DATA)";
  const LabelledImages all = read_images(std::span(&path, 1));
  EXPECT_EQ(all.images.sizes(), at::IntArrayRef({50000, 3, 32, 32}));
  EXPECT_THAT(all.class_names, ElementsAre("airplane", "automobile", "bird", "cat", "deer", "dog",
                                           "frog", "horse", "ship", "truck"));
  EXPECT_TRUE(at::equal(at::bincount(all.labels), at::full({10}, 5000, at::kLong)));
  // The published channel means of CIFAR-10's training images.
  const double means[] = {.4914, .4822, .4465};
  for (int64_t c = 0; c < 3; ++c) {
    const double mean = all.images.select(1, c).to(at::kFloat).mean().item<double>() / 255;
    EXPECT_NEAR(mean, means[c], 2e-3) << c;
  }
}

}  // namespace
}  // namespace compact::test
