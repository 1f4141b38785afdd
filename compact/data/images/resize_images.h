// SPDX-License-Identifier: Apache-2.0
// Images brought to one size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "compact/base/image_fit.h"
#include "compact/data/images/image_size.h"

namespace compact {

// Height and width of images [count, channels, height, width].
ImageSize size_of(const at::Tensor& images);
// uint8 images [count, channels, height, width] in another size: scaled, and the middle cut out, as
// the image processors of transformers do. Unchanged where they have that size and are not cut.
at::Tensor resized(const at::Tensor& images, const ImageSize& size, const ImageFit& fit = {});
// Whether images of one size are changed to become those of another.
bool is_changed(const ImageSize& from, const ImageSize& size, const ImageFit& fit);

// "PATH: 20 images, the first of 64 x 48 pixels, were scaled to 32 x 32".
std::string resized_text(const std::string& path, int64_t count, const ImageSize& first,
                         const ImageSize& size);

}  // namespace compact
