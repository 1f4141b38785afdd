// SPDX-License-Identifier: Apache-2.0
// The autograd node of a segment.
#pragma once

#include <ATen/core/Tensor.h>

namespace compact {

class Segment;

// Runs the segment on x and, where something requires a gradient, records one node for it, which
// lives without the segment. Where nobody else holds x, its memory may be reused.
at::Tensor run_segment(const Segment& segment, at::Tensor x, const at::Tensor& lengths);

}  // namespace compact
