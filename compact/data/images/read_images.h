// SPDX-License-Identifier: Apache-2.0
// Labelled images from files of any form that is read, told apart by their names.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "compact/base/image_fit.h"
#include "compact/data/images/image_size.h"
#include "compact/data/images/images.h"

namespace compact {

// One after the other, the images of
//   NAME-images-idx3-ubyte[.gz|.xz|.zst]   idx (MNIST, Fashion-MNIST), with the labels beside it in
//                                          NAME-labels-idx1-ubyte, compressed or not
//   NAME.bin[.gz|.xz|.zst]                 records of CIFAR-10
//   NAME.tar[.gz|.bz2|.xz|.zst], .tgz, .txz, .zip   class folders of JPEG or PNG files
// With a size, all are brought to it (resize_images.h), and a line for each file says what was
// scaled. Throws InputError on other names, on what the readers of these forms refuse, and where
// images of several files differ in the names of their classes or, without a size, in theirs.
LabelledImages read_images(std::span<const std::string> paths, std::optional<ImageSize> size = {},
                           const ImageFit& fit = {}, bool strict = true);

}  // namespace compact
