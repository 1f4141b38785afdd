// SPDX-License-Identifier: Apache-2.0
// A segment with the parameters that it reads at every call, and what its passes left.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compact/ops/segments/segment.h"

namespace compact {

struct BoundSegment : Segment {
  using Segment::Segment;

  int add(std::shared_ptr<const Stage> stage, std::initializer_list<const Parameter*> read = {},
          Slot output = {}, Slot side = {}) {
    parameters.insert(parameters.end(), read);
    return Segment::add(std::move(stage), std::move(output), std::move(side));
  }
  int add_branch(int input, std::shared_ptr<const Stage> stage,
                 std::initializer_list<const Parameter*> read = {}, Slot output = {}) {
    parameters.insert(parameters.end(), read);
    return Segment::add_branch(input, std::move(stage), std::move(output));
  }
  at::Tensor operator()(at::Tensor x) {
    report.slots.clear();
    report.saved_bytes = 0;
    return Segment::operator()(std::move(x), weights_of(parameters), pass, &report);
  }

  std::vector<const Parameter*> parameters;
  SegmentPass pass;      // of the calls to come
  SegmentReport report;  // of the last one
};

}  // namespace compact
