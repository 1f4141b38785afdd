// SPDX-License-Identifier: Apache-2.0
// The segments of a network, and which of them are alike: what is found for one holds for all of
// its kind.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compact/networks/network.h"
#include "compact/plan/request.h"

namespace compact {

// A weight of two dimensions or more.
struct SegmentMatrix {
  std::string name;  // of the parameter
  int64_t out = 0, in = 0;
  bool projectable = false;  // its gradient may be projected, and its input need not be kept then
};

struct SegmentInfo {
  std::string name;  // layers.3
  size_t group = 0;  // numbered in the order of the forward pass
  // Slots, without the segment's name: which may be rebuilt, which codecs may hold.
  std::vector<std::string> rebuilt, held;
  std::vector<std::string> signs;  // slots, by their whole names, of which only signs are read
  std::vector<Work> work;          // of its steps, one micro-batch
  std::vector<int64_t> variants;   // of its stages
  std::vector<SegmentMatrix> matrices;

  std::string in_segment(const std::string& slot) const { return name + "." + slot; }
};

// Describes a segment that reads x and these weights; its matrices are those among `parameters`,
// where these are given.
SegmentInfo segment_info(const Segment& segment, const at::Tensor& x, Weights weights,
                         const SegmentPass& pass, std::span<const Parameter* const> parameters);

// Lines of a policy that keeps what backward passes read: as it is, or one bit each where only
// signs are read.
std::string keep_lines(const std::vector<SegmentInfo>& segments);

// A segment as a forward pass of a training step runs it, on the meta device.
struct SegmentSample {
  std::shared_ptr<const Segment> segment;
  at::Tensor input;             // of no graph
  bool input_gradient = false;  // whether a gradient of it is asked for
  std::vector<Weight> weights;
  SegmentPass pass;
};

// A text of all that a segment's memory and time depend on: the same for segments that are alike.
std::string signature(const SegmentInfo& info, const SegmentSample& sample);

// Segments are alike where their slots, the bytes that their steps take, their inputs, and whether
// a gradient of the input is asked for, are the same.
class SegmentGroups {
 public:
  SegmentGroups() = default;
  // Runs one forward pass of a step on the meta device.
  explicit SegmentGroups(const StepRequest& request);
  // The next segment; only segments of one `kind` are alike.
  void add(SegmentInfo info, SegmentSample sample, const std::string& kind = {});
  // The matrix of the products of a loss in chunks, and how many tokens it is multiplied with in a
  // micro-batch.
  void set_head(at::Tensor weight, int64_t tokens);

  const std::vector<SegmentInfo>& segments() const { return segments_; }
  // The first segment of each group.
  const std::vector<SegmentSample>& samples() const { return samples_; }
  // Undefined: the loss is not made in chunks.
  const at::Tensor& head() const { return head_; }
  int64_t tokens() const { return tokens_; }
  // A text of all that the time of a step's segments and head depends on.
  std::string key() const;
  // Operations of the head's forward product on one micro-batch; 0 without a head.
  double head_products() const;

 private:
  at::Tensor head_;
  int64_t tokens_ = 0;
  std::vector<std::string> signatures_;  // of the groups
  std::vector<SegmentInfo> segments_;
  std::vector<SegmentSample> samples_;
};

}  // namespace compact
