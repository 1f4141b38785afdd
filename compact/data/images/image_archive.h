// SPDX-License-Identifier: Apache-2.0
// Images from an archive of class folders: CIFAR-10 as JPEG or PNG files, and what is laid out
// alike.
#pragma once

#include <optional>
#include <string>

#include "compact/data/images/images.h"
#include "compact/data/images/resize_images.h"

namespace compact {

// A tar (compressed or not) or zip archive of JPEG and PNG files named CLASS/NAME.jpg, under one
// folder for all or none ("train/cat/0001.jpg"); what a file is, its content says. Images are uint8
// [count, 3, height, width] in the archive's order; classes are those of folders with images, in
// the order of their names' bytes. Files whose names begin with a dot, and what else operating
// systems leave (Thumbs.db, desktop.ini, __MACOSX/), are passed over. Throws InputError with the
// member's name on a cut or corrupt archive, images of different sizes, a second folder above the
// classes, no images, more than 2^20 images, 2^21 members or 8 GiB of pixels; where `strict` also
// on other files, and on images that are cut, corrupt or beyond 4,096 pixels a side, which are
// otherwise left out with a warning that counts them. With a size, images may have any and get that
// one (resize_images.h); a warning says of how many.
LabelledImages read_image_archive(const std::string& path, std::optional<ImageSize> size = {},
                                  const ImageFit& fit = {}, bool strict = true);

}  // namespace compact
