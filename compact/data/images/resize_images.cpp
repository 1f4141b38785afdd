// SPDX-License-Identifier: Apache-2.0
#include "compact/data/images/resize_images.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {

ImageSize size_of(const at::Tensor& images) { return {images.size(2), images.size(3)}; }

std::string str(const ImageSize& size) { return cat(size.height, " x ", size.width); }

bool is_changed(const ImageSize& from, const ImageSize& size, const ImageFit& fit) {
  return !(from == size) || fit.middle < 1;
}

namespace {

// The size that an image is scaled to before it is cut.
ImageSize scaled_size(const ImageSize& from, const ImageSize& size, const ImageFit& fit) {
  const auto whole = [&](int64_t side) {
    return std::llround(static_cast<double>(side) / fit.middle);
  };
  const ImageSize least{whole(size.height), whole(size.width)};
  if (fit.stretch) return least;
  // The side that is just covered, and the other, rounded down.
  const bool by_height = least.height * from.width >= least.width * from.height;
  return by_height ? ImageSize{least.height,
                               std::max(least.width, least.height * from.width / from.height)}
                   : ImageSize{std::max(least.height, least.width * from.height / from.width),
                               least.width};
}

}  // namespace

at::Tensor resized(const at::Tensor& images, const ImageSize& size, const ImageFit& fit) {
  COMPACT_CHECK(size.height > 0 && size.width > 0, "[images] a size must be positive, is ",
                str(size));
  COMPACT_CHECK(fit.middle > 0 && fit.middle <= 1,
                "[images] the middle must be above 0 and at most 1, is ", fit.middle);
  const ImageSize from = size_of(images);
  if (!is_changed(from, size, fit)) return images;
  const ImageSize scaled = scaled_size(from, size, fit);
  constexpr int64_t kMostPixels = int64_t{1} << 28;
  COMPACT_CHECK(scaled.height * scaled.width <= kMostPixels, "[images] images of ", str(from),
                " scaled to ", str(scaled), " have more than ", kMostPixels, " pixels");
  const at::Tensor out =
      at::empty({images.size(0), images.size(1), size.height, size.width}, images.options());
  constexpr int64_t kStep = 256;  // images: what is in between takes memory
  for (int64_t i = 0; i < images.size(0); i += kStep) {
    const int64_t count = std::min(kStep, images.size(0) - i);
    at::Tensor some = images.narrow(0, i, count).contiguous();
    if (!(scaled == from)) {
      const std::vector<int64_t> sides = {scaled.height, scaled.width};
      some = fit.bicubic ? at::_upsample_bicubic2d_aa(some, sides, /*align_corners=*/false)
                         : at::_upsample_bilinear2d_aa(some, sides, /*align_corners=*/false);
    }
    const int64_t top = (scaled.height - size.height) / 2, left = (scaled.width - size.width) / 2;
    out.narrow(0, i, count).copy_(some.narrow(2, top, size.height).narrow(3, left, size.width));
  }
  return out;
}

std::string resized_text(const std::string& path, int64_t count, const ImageSize& first,
                         const ImageSize& size) {
  return cat(path, ": ", count, count == 1 ? " image, of " : " images, the first of ", str(first),
             count == 1 ? " pixels, was scaled to " : " pixels, were scaled to ", str(size));
}

}  // namespace compact
