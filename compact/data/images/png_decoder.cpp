// SPDX-License-Identifier: Apache-2.0
#include "compact/data/images/png_decoder.h"

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include "compact/data/files/odd_ones.h"
#include "compact/data/files/printable.h"
#include "compact/data/images/orientation.h"

namespace compact {
namespace {

constexpr std::string_view kSignature = "\x89PNG\r\n\x1a\n";

// The bytes that libpng reads, and its message when it stops.
struct Source {
  std::string_view rest;
  char message[200] = "";
};

[[noreturn]] void stop(png_structp png, png_const_charp message) {
  auto* const source = static_cast<Source*>(png_get_error_ptr(png));
  std::snprintf(source->message, sizeof source->message, "%s", message);
  std::longjmp(png_jmpbuf(png), 1);
}

void read(png_structp png, png_bytep to, size_t size) {
  auto* const source = static_cast<Source*>(png_get_io_ptr(png));
  if (source->rest.size() < size) png_error(png, "it ends too early");
  std::memcpy(to, source->rest.data(), size);
  source->rest.remove_prefix(size);
}

// libpng's structures, from which it jumps back here: nothing is made between that has to be
// destroyed. `pixels` and `rows` are made by the caller and filled here.
bool read_png(Source& source, int64_t most, ImageSize& sides, int& orientation, std::string& pixels,
              std::vector<png_bytep>& rows) {
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, stop,
                                           [](png_structp, png_const_charp) {});
  png_infop info = png ? png_create_info_struct(png) : nullptr;
  if (!info) throw std::bad_alloc();
  if (setjmp(png_jmpbuf(png)) != 0) {
    png_destroy_read_struct(&png, &info, nullptr);
    return false;
  }
  png_set_read_fn(png, &source, read);
  png_set_user_limits(png, static_cast<png_uint_32>(most), static_cast<png_uint_32>(most));
  png_read_info(png, info);
  sides = {png_get_image_height(png, info), png_get_image_width(png, info)};
  // Grey of 16 bits is cut at 255, as Pillow converts its mode I;16 to RGB.
  const bool deep_grey =
      png_get_bit_depth(png, info) == 16 && png_get_color_type(png, info) == PNG_COLOR_TYPE_GRAY;
  png_set_expand(png);
  if (!deep_grey) {
    png_set_strip_16(png);
    png_set_gray_to_rgb(png);
  }
  png_set_strip_alpha(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
  const size_t row = 3 * static_cast<size_t>(sides.width);
  if (png_get_rowbytes(png, info) != (deep_grey ? row / 3 * 2 : row))
    png_error(png, "its rows have another length");
  pixels.resize(row * static_cast<size_t>(sides.height));
  for (int64_t y = 0; y < sides.height; ++y) {
    rows.push_back(reinterpret_cast<png_bytep>(pixels.data()) + static_cast<size_t>(y) * row);
  }
  png_read_image(png, rows.data());
  for (size_t y = 0; deep_grey && y < rows.size(); ++y) {
    for (size_t x = row / 3; x-- > 0;) {  // from the end: a pixel takes more bytes afterwards
      const png_byte grey = rows[y][2 * x] != 0 ? 255 : rows[y][2 * x + 1];
      std::fill_n(rows[y] + 3 * x, 3, grey);
    }
  }
  png_read_end(png, info);
  png_uint_32 bytes = 0;
  png_bytep exif = nullptr;
  if (png_get_eXIf_1(png, info, &bytes, &exif) != 0) {
    orientation = exif_orientation({reinterpret_cast<const char*>(exif), bytes});
  }
  png_destroy_read_struct(&png, &info, nullptr);
  return true;
}

}  // namespace

bool is_png(std::string_view bytes) { return bytes.starts_with(kSignature); }

PngDecoder::PngDecoder(std::string_view bytes, const std::string& where, int64_t most) {
  Source source{.rest = bytes};
  std::vector<png_bytep> rows;
  if (!read_png(source, most, stored_, orientation_, pixels_, rows)) {
    throw OddOne(cat(where, ": no whole PNG: ", printable(source.message)));
  }
}

ImageSize PngDecoder::sides() const { return turned_size(stored_, orientation_); }

void PngDecoder::decode(uint8_t* to) const {
  const size_t plane = pixels_.size() / 3;
  std::vector<uint8_t> planes(pixels_.size());
  for (size_t i = 0; i < plane; ++i) {
    for (size_t colour = 0; colour < 3; ++colour) {
      planes[colour * plane + i] = static_cast<uint8_t>(pixels_[3 * i + colour]);
    }
  }
  turn_planes(planes.data(), stored_, orientation_, to);
}

}  // namespace compact
