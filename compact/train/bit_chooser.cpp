// SPDX-License-Identifier: Apache-2.0
#include "compact/train/bit_chooser.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "compact/base/check.h"
#include "compact/plan/sensitivity.h"

namespace compact {
namespace {

constexpr int64_t kSample = int64_t{1} << 18;  // elements of the gradient that are compared

// Every so-many-th element of the gradients, which are freed.
at::Tensor sampled_gradient(const Llama& model) {
  int64_t all = 0;
  for (const Parameter* p : model.parameters()) all += p->leaf().numel();
  const int64_t stride = std::max<int64_t>(1, all / kSample);
  std::vector<at::Tensor> parts;
  for (const Parameter* p : model.parameters()) {
    at::Tensor& grad = p->leaf().mutable_grad();
    parts.push_back(grad.reshape({-1}).slice(0, 0, {}, stride).to(at::kFloat, false, true));
    grad.reset();
  }
  return at::cat(parts);
}

}  // namespace

BitChooser::BitChooser(const TrainConfig& config, const Llama& model)
    : interval_(config.bits_interval), probes_(config.bits_probes) {
  for (const AdaptiveTensor& t : adaptive_tensors(model.codec_slots(), 1)) {
    const int64_t bits = Spec::parse_chain(t.treatment)[0].integer("bits", 4);
    COMPACT_CHECK(t.average <= static_cast<double>(bits), "slot `", t.name, "` = ", t.treatment,
                  ": adapt must be at most bits, which plans count on");
    fewest_ = std::min(fewest_.value_or(8), bits);
  }
}

bool BitChooser::due(int64_t step) const { return fewest_ && step % interval_ == 0; }

std::string BitChooser::choose(Llama& model, const at::Tensor& ids, const at::Tensor& targets,
                               uint64_t noise) {
  const auto tensors = adaptive_tensors(model.codec_slots(), ids.numel());
  // Probes hold 8 bits: of so many fewer tokens that the step's plan holds for them, too.
  const int64_t rows = ids.size(0) * *fewest_ / 8;
  const auto part = [&](const at::Tensor& x) {
    if (rows > 0) return x.narrow(0, 0, rows);
    return x.narrow(0, 0, 1).narrow(1, 0, std::max<int64_t>(1, x.numel() * *fewest_ / 8));
  };
  const at::Tensor some = part(ids), wanted = part(targets);
  const GradientProbe probe = [&](const Policy& policy, uint64_t key) {
    for (const AdaptiveTensor& t : tensors) model.set_codec(t.name, policy.slot_text(t.name));
    model.set_noise(key);
    const at::Tensor loss = model.loss(some, wanted, 1.0 / static_cast<double>(some.numel()));
    torch::autograd::backward({loss}, {});
    return sampled_gradient(model);
  };
  const BitPlan plan = adaptive_bits(
      tensors, sensitivity_by_groups(probe, tensors, static_cast<int>(probes_), noise));
  restore(model, plan.policy.str());
  std::map<int, int> counts;
  for (size_t i = 0; i < tensors.size(); ++i) ++counts[plan.bits[i]];
  std::string text;
  for (const auto& [bits, count] : counts)
    text += cat(text.empty() ? "" : ", ", count, " x ", bits);
  return cat("bits     ", text, "; predicted error of the gradient ",
             std::lround(100 * plan.allocation.error / plan.uniform_error),
             " % of that of equal bits");
}

void BitChooser::restore(Llama& model, const std::string& bits) {
  bits_ = bits;
  if (bits.empty()) return;
  const Policy policy = Policy::parse(bits, "bits");
  for (const AdaptiveTensor& t : adaptive_tensors(model.codec_slots(), 1)) {
    model.set_codec(t.name, policy.slot_text(t.name));
  }
}

}  // namespace compact
