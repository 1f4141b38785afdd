// SPDX-License-Identifier: Apache-2.0
// The autograd node of a segment.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "compact/ops/segments/recipe.h"

namespace compact {

struct SegmentReport;

// Runs the recipe on x and, where something requires a gradient, records one node for it. Where the
// caller gives x up, its memory may be reused.
at::Tensor run_segment(const std::shared_ptr<const Recipe>& recipe, at::Tensor x,
                       std::vector<Weight> weights, const SegmentPass& pass, SegmentReport* report);

}  // namespace compact
