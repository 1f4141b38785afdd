// SPDX-License-Identifier: Apache-2.0
#include "compact/data/images/jpeg.h"

#include <csetjmp>
#include <cstdio>
#include <vector>

#include <jpeglib.h>

#include "compact/data/files/odd_ones.h"
#include "compact/data/files/printable.h"
#include "compact/data/images/orientation.h"

namespace compact {
namespace {

constexpr int kMostScans = 100;
constexpr int kExifMarker = JPEG_APP0 + 1;

}  // namespace

struct JpegDecoder::State {
  jpeg_decompress_struct image{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf back;
  char message[JMSG_LENGTH_MAX] = "";
  std::string where;
  std::vector<uint8_t> row, planes;
  int orientation = 1;

  // The error handler of libjpeg, which must not return, and must not throw through C frames.
  [[noreturn]] static void stop(j_common_ptr image) {
    auto* const state = static_cast<State*>(image->client_data);
    image->err->format_message(image, state->message);
    std::longjmp(state->back, 1);
  }
  static void note(j_common_ptr image, int level) {
    if (level < 0) stop(image);
  }
  static void watch(j_common_ptr image) {
    auto* const state = static_cast<State*>(image->client_data);
    if (state->image.input_scan_number <= kMostScans) return;
    std::snprintf(state->message, sizeof state->message, "more than %d scans", kMostScans);
    std::longjmp(state->back, 1);
  }
};

// Runs a step that calls libjpeg; its frames between here and an error hold nothing to destroy.
template <class Step>
void JpegDecoder::guarded(const Step& step) {
  if (setjmp(state_->back) == 0) {
    step();
    return;
  }
  jpeg_abort_decompress(&state_->image);
  throw OddOne(cat(state_->where, ": no whole JPEG: ", printable(state_->message)));
}

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.image.err = jpeg_std_error(&s.errors);
  s.image.client_data = &s;
  s.errors.error_exit = State::stop;
  s.errors.emit_message = State::note;
  guarded([&s] { jpeg_create_decompress(&s.image); });
  s.progress.progress_monitor = State::watch;
  s.image.progress = &s.progress;
}

JpegDecoder::~JpegDecoder() { jpeg_destroy_decompress(&state_->image); }

ImageSize JpegDecoder::open(std::string_view bytes, const std::string& where) {
  State& s = *state_;
  s.where = where;
  jpeg_abort_decompress(&s.image);
  const auto* const data = reinterpret_cast<const unsigned char*>(bytes.data());
  const size_t size = bytes.size();
  guarded([&s, data, size] {
    jpeg_mem_src(&s.image, data, size);
    jpeg_save_markers(&s.image, kExifMarker, 0xFFFF);
    jpeg_read_header(&s.image, TRUE);
  });
  const ImageSize sides{s.image.image_height, s.image.image_width};
  for (const int64_t side : {sides.height, sides.width}) {
    if (side >= 1 && side <= kLargestSide) continue;
    throw OddOne(cat(where, ": sides must be from 1 to ", kLargestSide, " pixels, are ",
                     sides.height, " x ", sides.width));
  }
  const J_COLOR_SPACE colours = s.image.jpeg_color_space;
  if (colours == JCS_UNKNOWN) {
    throw OddOne(cat(where, ": must be a JPEG in greyscale or colour, has ", s.image.num_components,
                     " components of another kind"));
  }
  s.orientation = 1;
  constexpr std::string_view kExif("Exif\0\0", 6);
  for (auto* m = s.image.marker_list; m; m = m->next) {
    const std::string_view data_of(reinterpret_cast<const char*>(m->data), m->data_length);
    if (data_of.starts_with(kExif)) s.orientation = exif_orientation(data_of.substr(kExif.size()));
  }
  return turned_size(sides, s.orientation);
}

// One colour of four inks as Pillow converts them; inks are stored inverted: white is 255.
uint8_t of_ink(unsigned ink, unsigned black) {
  const unsigned product = (255 - ink) * black + 128;
  return static_cast<uint8_t>(black - ((product >> 8) + product) / 256);
}

void JpegDecoder::decode(uint8_t* to) {
  State& s = *state_;
  const size_t width = s.image.image_width, plane = width * s.image.image_height;
  const bool ink = s.image.jpeg_color_space == JCS_CMYK || s.image.jpeg_color_space == JCS_YCCK;
  const size_t components = ink ? 4 : 3;
  s.row.resize(components * width);
  if (s.orientation > 1) s.planes.resize(3 * plane);
  uint8_t* const planes = s.orientation > 1 ? s.planes.data() : to;
  guarded([&s, planes, width, plane, ink, components] {
    s.image.out_color_space = ink ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&s.image);
    uint8_t* out = planes;
    while (s.image.output_scanline < s.image.output_height) {
      JSAMPROW row = s.row.data();
      jpeg_read_scanlines(&s.image, &row, 1);
      for (size_t x = 0; x < width; ++x) {
        const JSAMPLE* const pixel = row + components * x;
        for (size_t colour = 0; colour < 3; ++colour) {
          out[colour * plane + x] = ink ? of_ink(pixel[colour], pixel[3]) : pixel[colour];
        }
      }
      out += width;
    }
    jpeg_finish_decompress(&s.image);
  });
  if (s.orientation > 1) {
    const ImageSize stored{s.image.image_height, s.image.image_width};
    turn_planes(planes, stored, s.orientation, to);
  }
}

}  // namespace compact
