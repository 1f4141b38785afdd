// SPDX-License-Identifier: Apache-2.0
#include "compact/data/images/resize_images.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"
#include "compact/base/text.h"

namespace compact {

ImageSize size_of(const at::Tensor& images) { return {images.size(2), images.size(3)}; }

std::string str(const ImageSize& size) { return cat(size.height, " x ", size.width); }

at::Tensor resized(const at::Tensor& images, const ImageSize& size) {
  COMPACT_CHECK(size.height > 0 && size.width > 0, "[images] a size must be positive, is ",
                str(size));
  const ImageSize from = size_of(images);
  if (from == size) return images;
  const auto part = [](int64_t side, double scale, int64_t wanted) {
    return std::clamp<int64_t>(std::llround(static_cast<double>(wanted) / scale), 1, side);
  };
  const double scale = std::max(static_cast<double>(size.height) / static_cast<double>(from.height),
                                static_cast<double>(size.width) / static_cast<double>(from.width));
  const int64_t height = part(from.height, scale, size.height),
                width = part(from.width, scale, size.width);
  const at::Tensor middle = images.narrow(2, (from.height - height) / 2, height)
                                .narrow(3, (from.width - width) / 2, width);
  const at::Tensor out =
      at::empty({images.size(0), images.size(1), size.height, size.width}, images.options());
  constexpr int64_t kStep = 256;  // images: what is in between takes memory
  for (int64_t i = 0; i < images.size(0); i += kStep) {
    const int64_t count = std::min(kStep, images.size(0) - i);
    out.narrow(0, i, count)
        .copy_(at::_upsample_bilinear2d_aa(middle.narrow(0, i, count).contiguous(),
                                           {size.height, size.width}, /*align_corners=*/false));
  }
  return out;
}

std::string resized_text(const std::string& path, int64_t count, const ImageSize& first,
                         const ImageSize& size) {
  return cat(path, ": ", count, count == 1 ? " image, of " : " images, the first of ", str(first),
             count == 1 ? " pixels, was scaled to " : " pixels, were scaled to ", str(size));
}

}  // namespace compact
