// SPDX-License-Identifier: Apache-2.0
// Causal attention by the fastest exact kernel that LibTorch has for a device and type. Called by
// name, so that nothing ever falls back to materialised scores unseen.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace compact {

// q [batch, heads, sequence, dim], k and v [batch, kv_heads, sequence, dim], any strides.
struct AttentionResult {
  at::Tensor out;  // [batch, heads, sequence, dim], memory [batch, sequence, heads, dim]
  std::vector<at::Tensor> extras;  // logsumexp first, then what the kernel's backward asks for
};
AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

struct AttentionGradients {
  at::Tensor gq, gk, gv;  // shapes of q, k, v
};
AttentionGradients attention_backward(const at::Tensor& gout, const at::Tensor& q,
                                      const at::Tensor& k, const at::Tensor& v,
                                      const at::Tensor& out, const std::vector<at::Tensor>& extras);

// Meta tensors are treated as those of this type of device (CPU at first): its kernels, and so the
// memory that they take. For the whole process.
void set_meta_device(c10::DeviceType type);
c10::DeviceType meta_device();

// The kernel in use: flash (cpu), flash (cuda), efficient (cuda) or math.
std::string attention_kernel(at::Device device, at::ScalarType type);

}  // namespace compact
