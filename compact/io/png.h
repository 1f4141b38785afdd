// SPDX-License-Identifier: Apache-2.0
// Pictures as PNG files.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>

namespace compact {

// `picture`: uint8 [height, width] in grey, or [height, width, 3] in red, green and blue, on the
// CPU. The file appears whole or not at all. Throws InputError on other tensors, on sides that are
// not in [1, 65535], and where the file cannot be written.
void write_png(const std::filesystem::path& path, const at::Tensor& picture);

}  // namespace compact
