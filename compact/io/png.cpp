// SPDX-License-Identifier: Apache-2.0
#include "compact/io/png.h"

#include <ATen/ATen.h>
#include <png.h>

#include <string>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"

namespace compact {

void write_png(const std::filesystem::path& path, const at::Tensor& picture) {
  const bool grey = picture.dim() == 2, colour = picture.dim() == 3 && picture.size(2) == 3;
  COMPACT_CHECK(
      picture.scalar_type() == at::kByte && picture.is_cpu() && (grey || colour),
      "[png] a picture must be uint8 [height, width] or [height, width, 3] on the CPU, is ",
      c10::toString(picture.scalar_type()), " ", picture.sizes());
  constexpr int64_t kMost = 65535;
  const int64_t height = picture.size(0), width = picture.size(1);
  COMPACT_CHECK(height >= 1 && width >= 1 && height <= kMost && width <= kMost,
                "[png] sides of a picture must be in [1, ", kMost, "], are ", height, " and ",
                width);
  const at::Tensor rows = picture.contiguous();
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = grey ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string content(bytes, '\0');
  COMPACT_CHECK(png_image_write_to_memory(&image, content.data(), &bytes, 0, rows.const_data_ptr(),
                                          0, nullptr),
                path.string(), ": cannot be encoded: ", image.message);
  content.resize(bytes);
  write_file_atomically(path, content);
}

}  // namespace compact
