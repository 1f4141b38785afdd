// SPDX-License-Identifier: Apache-2.0
// How images of any size are brought to the one that a model reads.
#pragma once

namespace compact {

struct ImageFit {
  bool stretch = false;  // to both sides; else scaled alike until both are covered, and cut
  double middle = 1;     // how much of each side of what is scaled is left, about its middle
  bool bicubic = false;  // else bilinear; both antialiased
  bool operator==(const ImageFit&) const = default;
};

}  // namespace compact
