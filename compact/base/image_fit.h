// SPDX-License-Identifier: Apache-2.0
// How images of any size are fitted to the size that a model reads.
#pragma once

namespace compact {

struct ImageFit {
  bool stretch = false;  // each side by itself; else alike until both are covered, then cropped
  double middle = 1;     // the part of each scaled side that a centre crop keeps
  bool bicubic = false;  // else bilinear; both antialiased
  bool operator==(const ImageFit&) const = default;
};

}  // namespace compact
