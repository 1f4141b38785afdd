// SPDX-License-Identifier: Apache-2.0
#include "compact/models/classifier.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>

#include "compact/base/check.h"
#include "compact/kernels/kernels.h"
#include "compact/ops/memory/memory_trace.h"

namespace compact {

Classifier::Classifier(Policy policy, const NetworkOptions& options)
    : Network(std::move(policy), options) {
  COMPACT_CHECK(options.label_smoothing >= 0 && options.label_smoothing < 1,
                "label smoothing must be at least 0 and below 1, is ", options.label_smoothing);
}

void Classifier::finish() {
  treat_parameters();
  for (const Parameter* p : parameters()) saved_.parameters.emplace_back(p->name, p->weight);
  saved_.lossless = policy().has(PolicyKind::kSlot);
}

at::Tensor Classifier::loss_sum(const at::Tensor& y, const at::Tensor& target, double smoothing) {
  if (!target.is_floating_point()) {
    return at::cross_entropy_loss(y, target, {}, at::Reduction::Sum, kernels::kIgnoreIndex,
                                  smoothing);
  }
  COMPACT_CHECK(y.size(1) == 1, "a regression has one output, the network ", y.size(1));
  return (y.select(1, 0) - target).square().sum();
}

void Classifier::check_slots(const SavedTensorReport& plain) const {
  std::vector<NamedRole> names = segment_slots();
  for (const SavedTensor& t : plain.tensors) names.push_back({t.name, t.role});
  policy().check_patterns(PolicyKind::kSlot, names);
}

at::Tensor Classifier::loss(const Tensors& inputs, const at::Tensor& target, const Pass& pass,
                            PassReport* report) const {
  const bool fresh = !report || report->plain.tensors.empty();
  std::optional<SavedTensorScope> scope;
  if (saved_.lossless || (report && fresh)) {
    Policy all = policy();
    all.append(chosen_);
    SavedTensorOptions options = saved_;
    options.noise = pass.noise;
    scope.emplace(std::move(all), std::move(options));
  }
  trace_moment(Phase::kForward);
  const at::Tensor y = logits(inputs, pass, report);
  trace_moment(Phase::kLoss);
  const at::Tensor sum =
      loss_sum(y.to(at::kFloat), target, options().label_smoothing).mul(pass.scale);
  if (scope) {
    SavedTensorReport plain = scope->report();
    if (!sum.requires_grad()) return sum;
    if (fresh) check_slots(plain);
    if (report) report->plain = std::move(plain);
  }
  trace_moment(Phase::kBackward);
  return sum;
}

Score Classifier::score(const Tensors& inputs, const at::Tensor& target, const at::Tensor&) const {
  const at::NoGradGuard no_grad;
  const at::Tensor y = logits(inputs, {.training = false}).to(at::kFloat);
  if (target.is_floating_point()) {
    return {.loss = loss_sum(y, target, 0).item<double>(),
            .targets = target.numel(),
            .predicted = y.select(1, 0).cpu()};
  }
  const at::Tensor counted = target.ne(kernels::kIgnoreIndex);
  const at::Tensor first = std::get<1>(y.topk(std::min<int64_t>(5, y.size(1)), 1));
  const at::Tensor hit = first.eq(target.unsqueeze(1)).logical_and_(counted.unsqueeze(1));
  return {.loss = loss_sum(y, target, 0).item<double>(),
          .targets = counted.sum().item<int64_t>(),
          .correct = hit.select(1, 0).sum().item<int64_t>(),
          .in_five = y.size(1) > 5 ? hit.sum().item<int64_t>() : -1,
          .predicted = first.select(1, 0).to(at::kFloat).cpu()};
}

void Classifier::set_codecs(const Policy& policy) {
  chosen_ = policy;
  Network::set_codecs(policy);
}

}  // namespace compact
