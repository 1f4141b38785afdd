// SPDX-License-Identifier: Apache-2.0
#include "compact/train/not_finite.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "compact/base/check.h"
#include "compact/config/option.h"

namespace compact {
namespace {

// The first in the order of the network that is not finite, or else the largest.
std::string about_weights(const Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  double most = -1;
  std::string of;
  for (const ParameterState& s : optimizer.states()) {
    const at::Tensor& w = s.parameter->weight;
    if (!w.defined() || w.numel() == 0) continue;
    const auto size = at::linalg_vector_norm(w.detach(), INFINITY).item<double>();
    if (!std::isfinite(size)) return cat("weights of ", s.parameter->name, " are not finite");
    if (size > most) {
      most = size;
      of = s.parameter->name;
    }
  }
  return formatted("all trained weights are finite, the largest is %.3g in %s", most, of.c_str());
}

std::string what_helps(const TrainConfig& c, bool releases) {
  std::string text = cat("a lower --learning_rate than ", number_text(c.learning_rate));
  text += c.warmup_steps > 0 ? cat(", more --warmup_steps than ", number_text(c.warmup_steps))
                             : ", --warmup_steps, of which there are none";
  if (c.max_grad_norm <= 0 && !releases) text += ", --max_grad_norm 1, since nothing is clipped";
  if (c.dtype == "bfloat16" && !c.master_weights) text += ", --master_weights true";
  return text;
}

}  // namespace

std::string about_not_finite(const TrainConfig& c, int64_t ranks, const Optimizer& optimizer) {
  const bool releases = std::ranges::any_of(
      optimizer.states(), [](const ParameterState& s) { return s.parameter->release; });
  // Under zero 3 others have most of them.
  const std::string weights = c.zero < 3 || ranks == 1 ? cat("; ", about_weights(optimizer)) : "";
  return cat(weights, "; what helps: ", what_helps(c, releases));
}

}  // namespace compact
