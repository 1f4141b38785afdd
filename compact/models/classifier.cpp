// SPDX-License-Identifier: Apache-2.0
#include "compact/models/classifier.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/codecs/draw.h"
#include "compact/kernels/kernels.h"
#include "compact/ops/dropout.h"
#include "compact/ops/memory_trace.h"
#include "compact/ops/treatments.h"

namespace compact {

Classifier::Classifier(Policy policy, const ClassifierOptions& options)
    : policy_(std::move(policy)), options_(options) {
  COMPACT_CHECK(options.label_smoothing >= 0 && options.label_smoothing < 1,
                "label smoothing must be at least 0 and below 1, is ", options.label_smoothing);
}

void Classifier::finish() {
  std::vector<std::string> names;
  for (Parameter* p : parameters()) {
    const Spec grad = policy_.grad(p->name);
    COMPACT_CHECK(grad.name == "full" || p->hidden, "grad `", p->name, "` = ", grad.str(),
                  ": gradients are projected in the matrices of transformer blocks only");
    p->carrier = make_carrier(grad, p->name, p->weight, p->parts, derive(key_of(p->name), 1));
    if (p->carrier) p->weight.requires_grad_(false);
    p->lr_scale = lr_scale_of(grad);
    p->release = grad.flag("release", false);
    names.push_back(p->name);
    saved_.parameters.emplace_back(p->name, p->weight);
  }
  policy_.check_patterns(PolicyKind::kGrad, names);
  COMPACT_CHECK(
      !policy_.has(PolicyKind::kGrad) ||
          std::ranges::any_of(
              names, [&](const std::string& n) { return policy_.names(PolicyKind::kGrad, n); }),
      "the policy or preset projects gradients of the matrices of transformer blocks, which "
      "this network has not");
  policy_.check_patterns(PolicyKind::kMoment, names);
  saved_.lossless = policy_.has(PolicyKind::kSlot);
}

Parameter Classifier::parameter(const std::string& name, const at::Tensor& value) const {
  Parameter p;
  p.name = name;
  p.weight = value.requires_grad_(true);
  p.decay = value.dim() > 1;
  p.parts = {value.size(0)};
  return p;
}

uint64_t Classifier::key_of(const std::string& name) const {
  return derive(options_.seed, label_of(name.data(), name.size()));
}

at::Tensor Classifier::normal(const std::string& name, at::IntArrayRef sizes,
                              double variance) const {
  const at::Tensor x = at::empty(sizes, tensor_options());
  draw(x, kernels::Distribution::kNormal, std::sqrt(variance), key_of(name));
  return x;
}

uint64_t Classifier::dropout_key() const {
  return derive(derive(noise_, label_of("dropout", 7)), ++draws_);
}

at::Tensor Classifier::dropout(const at::Tensor& x, double p) const {
  return p == 0 ? x : autograd_dropout(x, p, dropout_key());
}

at::Tensor Classifier::loss_sum(const at::Tensor& y, const at::Tensor& target, double smoothing) {
  if (!target.is_floating_point()) {
    return at::cross_entropy_loss(y, target, {}, at::Reduction::Sum, kernels::kIgnoreIndex,
                                  smoothing);
  }
  COMPACT_CHECK(y.size(1) == 1, "a regression has one output, the network ", y.size(1));
  return (y.select(1, 0) - target).square().sum();
}

at::Tensor Classifier::loss(const Tensors& inputs, const at::Tensor& target, double scale) const {
  std::optional<SavedTensorScope> scope;
  // Under `off` once, for the report: what passes through a scope costs a little.
  if (saved_.lossless || report_.tensors.empty()) {
    Policy policy = policy_;
    policy.append(chosen_);
    SavedTensorOptions options = saved_;
    options.noise = noise_;
    scope.emplace(std::move(policy), std::move(options));
  }
  trace_moment("forward");
  const at::Tensor y = logits(inputs, /*training=*/true);
  trace_moment("loss");
  const at::Tensor sum = loss_sum(y.to(at::kFloat), target, options_.label_smoothing).mul(scale);
  if (scope) report_ = scope->report();
  if (!checked_) {
    std::vector<std::string> names;
    for (const Segment* s : segments()) {
      for (const std::string& name : s->named_slots()) names.push_back(name);
    }
    for (const SavedTensor& t : report_.tensors) names.push_back(t.name);
    policy_.check_patterns(PolicyKind::kSlot, names);
    checked_ = true;
  }
  trace_moment("backward");
  return sum;
}

Score Classifier::score(const Tensors& inputs, const at::Tensor& target) const {
  const at::NoGradGuard no_grad;
  const at::Tensor y = logits(inputs, /*training=*/false).to(at::kFloat);
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

int64_t Classifier::saved_bytes() const {
  int64_t sum = report_.stored();
  for (const Segment* s : segments()) sum += s->saved_bytes();
  return sum;
}

void Classifier::set_noise(uint64_t key) const {
  noise_ = key, draws_ = 0;
  for (const Segment* s : segments()) s->set_noise(key);
}

std::vector<SlotBytes> Classifier::slots() const {
  std::vector<SlotBytes> all;
  for (const Segment* s : segments()) {
    all.insert(all.end(), s->latest().begin(), s->latest().end());
  }
  for (const SavedTensor& t : report_.tensors) {
    if (t.treatment == "parameter" || (t.shared && t.stored == 0)) continue;
    all.push_back({t.name, t.treatment, t.stored, t.shared ? 0 : t.bytes});
  }
  return all;
}

std::vector<CodecTensor> Classifier::codec_tensors(const Tensors&) const {
  std::vector<CodecTensor> all;
  const auto size = static_cast<int64_t>(c10::elementSize(options_.dtype));
  for (const Segment* s : segments()) {
    std::map<std::string, int64_t> bytes;
    for (const SlotBytes& row : s->latest()) bytes[row.name] = row.if_kept;
    for (const Slot& slot : s->codec_slots()) {
      if (bytes[slot.name] == 0) continue;
      all.push_back({slot.name, slot.treatment, bytes[slot.name] / size, options_.dtype});
    }
  }
  for (const SavedTensor& t : report_.tensors) {
    if (t.stored == 0 || t.treatment == "keep" || t.treatment == "parameter") continue;
    all.push_back(
        {t.name, t.treatment, t.bytes / static_cast<int64_t>(c10::elementSize(t.type)), t.type});
  }
  return all;
}

void Classifier::set_codecs(const Policy& policy) {
  chosen_ = policy;
  for (Segment* s : segments()) s->set_codecs(policy);
}

}  // namespace compact
