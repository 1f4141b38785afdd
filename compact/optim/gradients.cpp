// SPDX-License-Identifier: Apache-2.0
// Sums of gradients over passes, norms of all together, and clipping by them.
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

at::Tensor norm_of_all(const std::vector<at::Tensor>& norms) {
  const at::Tensor& first = norms.front();
  return norm_of(only_counted(first)
                     ? at::empty({static_cast<int64_t>(norms.size())}, first.options())
                     : at::stack(norms));
}

}  // namespace

const at::Tensor& ParameterState::gradient() const {
  if (!sum.defined()) return leaf.grad();
  COMPACT_CHECK(!leaf.grad().defined(), "[optimizer] `", parameter->name,
                "` has a gradient beside the f32 sum of those before");
  return sum;
}

// A block at a time, so that the f32 copy of one block is the only temporary. It is allocated
// before the sum changes: the sum has a gradient whole or not at all.
void ParameterState::sum_gradient(bool in_a_tree, bool last) {
  const at::NoGradGuard no_grad;
  at::Tensor& grad = leaf.mutable_grad();
  if (in_a_tree) {
    // As a binary counter carries: two sums of equally many passes become one.
    at::Tensor now = grad.to(at::kFloat).contiguous();
    grad.reset();
    for (int64_t before = passes++; before & 1; before >>= 1) {
      now = partial_sums.back().add_(now);
      partial_sums.pop_back();
    }
    partial_sums.push_back(std::move(now));
    if (last) finish_tree();
    return;
  }
  if (!sum.defined()) {
    sum = grad.to(at::kFloat).contiguous();
  } else {
    const at::Tensor from = grad.reshape({-1}), to = sum.view({-1});
    const at::Tensor block =
        at::empty({std::min(to.numel(), block_elements(to))}, to.options());  // f32
    for_alike_blocks(to, 0, to.numel(), block_elements(to), [&](int64_t first, int64_t count) {
      const at::Tensor part = block.narrow(0, 0, count);
      to.narrow(0, first, count).add_(part.copy_(from.narrow(0, first, count)));
    });
  }
  grad.reset();
}

void ParameterState::finish_tree() {
  if (partial_sums.empty()) return;
  const at::NoGradGuard no_grad;
  while (partial_sums.size() > 1) {
    const at::Tensor last = std::move(partial_sums.back());
    partial_sums.pop_back();
    partial_sums.back().add_(last);
  }
  sum = std::move(partial_sums.back());
  partial_sums.clear();
  passes = 0;
}

void ParameterState::clear_gradient() {
  sum.reset();
  total.reset();
  partial_sums.clear();
  passes = 0;
  leaf.mutable_grad().reset();
}

void append_norms(const at::Tensor& x, std::vector<at::Tensor>& norms) {
  if (x.scalar_type() == at::kFloat) return norms.push_back(norm_of(x));
  const at::Tensor flat = x.reshape({-1});
  for_blocks(0, flat.numel(), kBlockElements, [&](int64_t first, int64_t count) {
    // The last whole block takes the most, beside the norms before it.
    if (only_counted(x) && flat.numel() - first > 2 * kBlockElements) {
      return norms.push_back(at::empty({}, x.options().dtype(at::kFloat)));
    }
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
  return norms.empty() ? at::zeros({}, at::kFloat) : norm_of_all(norms);
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
