// SPDX-License-Identifier: Apache-2.0
// Cross-entropy of each row of logits and its gradient, as kernels make them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "compact/codecs/launch.h"

namespace compact {

// logits [rows, vocabulary] and int64 targets [rows], both contiguous -> lse, loss f32 [rows], and
// log_probs f32 [rows, vocabulary] where it is defined.
inline void softmax_forward(const at::Tensor& logits, const at::Tensor& targets,
                            const at::Tensor& lse, const at::Tensor& loss,
                            const at::Tensor& log_probs) {
  backend_of(logits).cross_entropy(
      {.logits = logits.const_data_ptr(),
       .targets = static_cast<const int64_t*>(targets.const_data_ptr()),
       .lse = static_cast<float*>(lse.data_ptr()),
       .loss = static_cast<float*>(loss.data_ptr()),
       .log_probs = log_probs.defined() ? static_cast<float*>(log_probs.data_ptr()) : nullptr,
       .rows = logits.size(0),
       .vocabulary = logits.size(1),
       .type = type_of(logits)},
      launch_for(logits));
}

// Gradient of scale * loss, into `grad`, from logits (may be `grad` itself) or log_probs.
inline void softmax_backward(const at::Tensor& logits, const at::Tensor& log_probs,
                             const at::Tensor& lse, const at::Tensor& targets, double scale,
                             const at::Tensor& grad) {
  backend_of(grad).cross_entropy_backward(
      {.logits = logits.defined() ? logits.const_data_ptr() : nullptr,
       .log_probs =
           log_probs.defined() ? static_cast<const float*>(log_probs.const_data_ptr()) : nullptr,
       .lse = lse.defined() ? static_cast<const float*>(lse.const_data_ptr()) : nullptr,
       .targets = static_cast<const int64_t*>(targets.const_data_ptr()),
       .grad = grad.data_ptr(),
       .rows = grad.size(0),
       .vocabulary = grad.size(1),
       .scale = static_cast<float>(scale),
       .type = type_of(grad)},
      launch_for(grad));
}

}  // namespace compact
