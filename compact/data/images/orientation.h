// SPDX-License-Identifier: Apache-2.0
// How a camera was held: pictures are turned as EXIF says, before anything else is done with them.
#pragma once

#include <cstdint>
#include <string_view>

#include "compact/data/images/image_size.h"

namespace compact {

// The orientation that EXIF data says, from 1 (upright) to 8; 1 where they say none, or are broken.
// `tiff` is the TIFF structure, which follows "Exif\0\0" in JPEG files.
int exif_orientation(std::string_view tiff);

// The sides of a picture once it is turned.
ImageSize turned_size(const ImageSize& stored, int orientation);

// Turns planes[3 * height * width] of the stored sides into `to`.
void turn_planes(const uint8_t* planes, const ImageSize& stored, int orientation, uint8_t* to);

}  // namespace compact
