// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/groups.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "compact/base/check.h"

namespace compact {
namespace {

void add_tensor(std::string& text, const at::Tensor& t) {
  if (!t.defined()) return;
  text += cat(t.sizes(), t.strides(), c10::toString(t.scalar_type()), t.requires_grad() ? "g" : "",
              ";");
}

}  // namespace

std::string signature(const SegmentInfo& info, const SegmentSample& sample) {
  std::string text;
  for (const auto* slots : {&info.rebuilt, &info.held}) {
    for (const std::string& slot : *slots) text += slot + ",";
    text += ";";
  }
  for (const std::string& slot : info.signs) text += slot.substr(info.name.size()) + ",";
  for (const Work& w : info.work) text += cat(" ", w.products, " ", w.bytes);
  for (const int64_t v : info.variants) text += cat(" ", v);
  add_tensor(text, sample.input);
  text += sample.input_gradient ? "g" : "";
  for (const Weight& w : sample.weights) {
    add_tensor(text, w.leaf);
    add_tensor(text, w.value);
  }
  if (const at::Tensor& ranges = sample.pass.ranges; ranges.defined()) {
    text += "ranges";
    const auto* numbers = ranges.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < ranges.numel(); ++i) text += cat(" ", numbers[i]);
  }
  return text;
}

SegmentInfo segment_info(const Segment& s, const at::Tensor& x, Weights weights,
                         const SegmentPass& pass, std::span<const Parameter* const> parameters) {
  SegmentInfo info{.name = s.name(), .work = s.work(x, weights, pass), .variants = s.variants()};
  const size_t skip = s.name().size() + 1;
  for (const SlotUse& use : s.uses()) {
    if (use.signs) {
      info.signs.push_back(use.name);
      continue;
    }
    info.held.push_back(use.name.substr(skip));
    if (use.rebuilt) info.rebuilt.push_back(use.name.substr(skip));
  }
  const std::vector<bool> projectable = s.projectable();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& weight = parameters[i]->weight;
    if (weight.dim() < 2) continue;
    info.matrices.push_back(
        {.name = parameters[i]->name,
         .out = weight.size(0),
         .in = weight.numel() / weight.size(0),
         .projectable = projectable[i] && parameters[i]->hidden && parameters[i]->trained});
  }
  return info;
}

std::string keep_lines(const std::vector<SegmentInfo>& segments) {
  std::string text = "slot * = keep\n";
  for (const SegmentInfo& s : segments) {
    for (const std::string& slot : s.signs) text += cat("slot ", slot, " = mask:of=sign\n");
  }
  return text;
}

void SegmentGroups::add(SegmentInfo info, SegmentSample sample, const std::string& kind) {
  const std::string text = signature(info, sample) + kind;
  const auto found = std::ranges::find(signatures_, text);
  info.group = static_cast<size_t>(found - signatures_.begin());
  if (found == signatures_.end()) {
    signatures_.push_back(text);
    samples_.push_back(std::move(sample));
  }
  segments_.push_back(std::move(info));
}

void SegmentGroups::set_head(at::Tensor weight, int64_t tokens) {
  head_ = std::move(weight);
  tokens_ = tokens;
}

SegmentGroups::SegmentGroups(const StepRequest& request) {
  prepare_meta(request.device);
  const std::shared_ptr<Network> network = request.network(at::kMeta);
  const StepInputs batch = request.micro_batch(at::kMeta, 0);
  const Parameter* const head = network->chunked_head();
  set_head(head ? head->weight : at::Tensor(), batch.target.numel());
  const auto see = [&](const Segment& s, const at::Tensor& x, Weights weights,
                       const SegmentPass& pass) {
    add(segment_info(s, x, weights, {.ranges = pass.ranges}, network->parameters_of(s)),
        {.segment = {network, &s},
         .input = x.detach(),
         .input_gradient = x.requires_grad(),
         .weights = {weights.begin(), weights.end()},
         .pass = {pass.training, pass.noise, pass.lengths, pass.ranges}});
  };
  const at::AutoGradMode with_graph(true);
  network->each_segment(batch.inputs, batch.target, {.ranges = batch.ranges}, see);
  COMPACT_CHECK(segments_.size() == network->segments().size(), "[plan] a forward pass shows ",
                segments_.size(), " of ", network->segments().size(), " segments");
}

std::string SegmentGroups::key() const {
  std::string text = cat(tokens_, " ");
  add_tensor(text, head_);
  for (const std::string& each : signatures_) text += each + "\n";
  return text;
}

double SegmentGroups::head_products() const {
  if (!head_.defined()) return 0;
  return 2.0 * static_cast<double>(tokens_) * static_cast<double>(head_.numel());
}

}  // namespace compact
