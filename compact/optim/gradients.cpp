// SPDX-License-Identifier: Apache-2.0
// Norms of all gradients together, and clipping by them.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "compact/base/check.h"
#include "compact/codecs/blocks.h"
#include "compact/codecs/meta_device.h"
#include "compact/optim/update.h"

namespace compact {
namespace {

at::Tensor norm_of(const at::Tensor& x) { return at::linalg_vector_norm(x); }

}  // namespace

void append_norms(const at::Tensor& x, std::vector<at::Tensor>& norms) {
  if (x.scalar_type() == at::kFloat) return norms.push_back(norm_of(x));
  const at::Tensor flat = x.reshape({-1});
  for_blocks(0, flat.numel(), kBlockElements, [&](int64_t first, int64_t count) {
    norms.push_back(norm_of(flat.narrow(0, first, count).to(at::kFloat)));
  });
}

at::Tensor Optimizer::gradient_norm() const {
  const at::NoGradGuard no_grad;
  check_summed();
  if (reduction_ && options_.zero > 0) return norm_over_ranks();
  std::vector<at::Tensor> norms = released_norms_, on_gpu;
  for (const ParameterState& s : states_) {
    const at::Tensor& g = s.gradient();
    if (!g.defined()) continue;
    device_type_of(g) == at::kCUDA ? on_gpu.push_back(g) : append_norms(g, norms);
  }
  // All gradients of one type in few launches.
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    std::vector<at::Tensor> like;
    std::ranges::copy_if(on_gpu, std::back_inserter(like),
                         [&](const at::Tensor& g) { return g.scalar_type() == type; });
    if (like.empty()) continue;
    for (at::Tensor& norm : at::_foreach_norm(like, 2, at::kFloat))
      norms.push_back(std::move(norm));
  }
  return norms.empty() ? at::zeros({}, at::kFloat) : norm_of(at::stack(norms));
}

at::Tensor Optimizer::clip_factor(const at::Tensor& norm, double max_norm) {
  COMPACT_CHECK(max_norm > 0, "[optimizer] max_grad_norm must be positive, is ", max_norm);
  return at::add(norm, 1e-6).reciprocal_().mul_(max_norm).clamp_max_(1);
}

std::string Optimizer::nonfinite(const at::Tensor& norm) const {
  if (std::isfinite(norm.item<float>())) return {};
  const at::Tensor counts = at::zeros({static_cast<int64_t>(states_.size())}, at::kInt);
  auto* count = counts.mutable_data_ptr<int32_t>();
  for (size_t i = 0; i < states_.size(); ++i) {
    const at::Tensor& g = states_[i].gradient();
    count[i] = g.defined() && !g.isfinite().all().item<bool>();
  }
  if (reduction_) options_.group->all_reduce(counts);
  for (size_t i = states_.size(); i-- > 0;) {
    if (count[i] > 0) return states_[i].parameter->name;
  }
  return "gradient norm";
}

}  // namespace compact
