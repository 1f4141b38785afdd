// SPDX-License-Identifier: Apache-2.0
// Archives and JPEG files that tests make, in memory.
#pragma once

#include <archive.h>
#include <archive_entry.h>
#include <gtest/gtest.h>
#include <png.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <jpeglib.h>

namespace compact::test {

struct Member {
  std::string name, bytes;
  int type = AE_IFREG;
  std::string link = {};
};

// `format` is "ustar", "pax" or "zip"; `filter` "none", "gzip", "xz", "zstd", ...
inline std::string archive_of(const std::vector<Member>& members, const std::string& format,
                              const std::string& filter = "none") {
  std::string out(1 << 20, '\0');
  for (const Member& member : members) out.resize(out.size() + 2 * member.bytes.size() + 2048);
  size_t used = 0;
  archive* const a = archive_write_new();
  EXPECT_EQ(archive_write_set_format_by_name(a, format.c_str()), ARCHIVE_OK);
  if (filter != "none") {
    EXPECT_EQ(archive_write_add_filter_by_name(a, filter.c_str()), ARCHIVE_OK);
  }
  EXPECT_EQ(archive_write_open_memory(a, out.data(), out.size(), &used), ARCHIVE_OK);
  for (const Member& member : members) {
    archive_entry* const entry = archive_entry_new();
    archive_entry_set_pathname(entry, member.name.c_str());
    archive_entry_set_filetype(entry, static_cast<unsigned>(member.type));
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, static_cast<int64_t>(member.bytes.size()));
    if (!member.link.empty() && member.type == AE_IFLNK) {
      archive_entry_set_symlink(entry, member.link.c_str());
    } else if (!member.link.empty()) {
      archive_entry_set_hardlink(entry, member.link.c_str());
    }
    // A warning says that a name of other letters is written as it is.
    EXPECT_GE(archive_write_header(a, entry), ARCHIVE_WARN) << archive_error_string(a);
    archive_write_data(a, member.bytes.data(), member.bytes.size());
    archive_entry_free(entry);
  }
  EXPECT_EQ(archive_write_close(a), ARCHIVE_OK);
  archive_write_free(a);
  out.resize(used);
  return out;
}

enum class JpegForm { kBaseline, kProgressive, kScanPerColour };

// A JPEG whose every pixel is of `values`: 1 of them for grey, 3 for colour, 4 for CMYK.
inline std::string jpeg_of(int width, int height, const std::vector<unsigned char>& values,
                           JpegForm form = JpegForm::kBaseline, bool dark_above = false) {
  jpeg_compress_struct image{};
  jpeg_error_mgr errors{};
  image.err = jpeg_std_error(&errors);
  jpeg_create_compress(&image);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&image, &bytes, &size);
  image.image_width = static_cast<JDIMENSION>(width);
  image.image_height = static_cast<JDIMENSION>(height);
  image.input_components = static_cast<int>(values.size());
  image.in_color_space = values.size() == 1   ? JCS_GRAYSCALE
                         : values.size() == 3 ? JCS_RGB
                                              : JCS_CMYK;
  jpeg_set_defaults(&image);
  jpeg_set_quality(&image, 95, TRUE);
  if (form == JpegForm::kProgressive) jpeg_simple_progression(&image);
  jpeg_scan_info scans[4] = {};
  if (form == JpegForm::kScanPerColour) {
    for (int c = 0; c < image.num_components; ++c) scans[c] = {1, {c}, 0, 63, 0, 0};
    image.scan_info = scans;
    image.num_scans = image.num_components;
  }
  jpeg_start_compress(&image, TRUE);
  std::string row;
  for (int x = 0; x < width; ++x) row.append(values.begin(), values.end());
  for (int y = 0; y < height; ++y) {
    if (dark_above && y == height / 2) row.assign(row.size(), '\xff');
    JSAMPROW rows = reinterpret_cast<JSAMPROW>(row.data());
    jpeg_write_scanlines(&image, &rows, 1);
  }
  jpeg_finish_compress(&image);
  jpeg_destroy_compress(&image);
  std::string out(reinterpret_cast<char*>(bytes), size);
  std::free(bytes);
  return out;
}

// A JPEG whose every pixel has this colour.
inline std::string colour(unsigned char r, unsigned char g, unsigned char b, int width = 8,
                          int height = 8) {
  return jpeg_of(width, height, {r, g, b});
}

// 32 rows of 16 pixels, black above and white below.
inline std::string halves_jpeg() {
  return jpeg_of(16, 32, {0, 0, 0}, JpegForm::kBaseline, /*dark_above=*/true);
}

// A PNG whose every pixel is of `values`: 1 of them for grey, 3 for colour, 4 with transparency.
inline std::string png_of(unsigned width, unsigned height, const std::string& values) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = width;
  image.height = height;
  image.format = values.size() == 1   ? PNG_FORMAT_GRAY
                 : values.size() == 3 ? PNG_FORMAT_RGB
                                      : PNG_FORMAT_RGBA;
  std::string pixels;
  for (unsigned i = 0; i < width * height; ++i) pixels += values;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string out(bytes, '\0');
  EXPECT_TRUE(png_image_write_to_memory(&image, out.data(), &bytes, 0, pixels.data(), 0, nullptr));
  out.resize(bytes);
  return out;
}

}  // namespace compact::test
