// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/attention.h"

#include <ATen/ATen.h>

#include <atomic>
#include <cmath>
#include <limits>

namespace compact {
namespace {

enum class Kernel { kCpuFlash, kCudaFlash, kCudaEfficient, kMath };

std::atomic<c10::DeviceType> g_meta_device{c10::kCPU};

Kernel kernel_for(at::Device device, at::ScalarType type) {
  const c10::DeviceType on = device.is_meta() ? meta_device() : device.type();
  if (on == c10::kCUDA) return type == at::kFloat ? Kernel::kCudaEfficient : Kernel::kCudaFlash;
  return on == c10::kCPU ? Kernel::kCpuFlash : Kernel::kMath;
}

// Heads of keys and values repeated for grouped queries. [batch, heads, sequence, dim]
at::Tensor repeat(const at::Tensor& t, int64_t heads) {
  if (t.size(1) == heads) return t;
  return t.unsqueeze(2)
      .expand({t.size(0), t.size(1), heads / t.size(1), t.size(2), t.size(3)})
      .reshape({t.size(0), heads, t.size(2), t.size(3)});
}

// The adjoint of repeat: sums the gradients of a group.
at::Tensor reduce(const at::Tensor& g, int64_t kv_heads) {
  if (g.size(1) == kv_heads) return g;
  return g.reshape({g.size(0), kv_heads, g.size(1) / kv_heads, g.size(2), g.size(3)}).sum(2);
}

// f32 probabilities of the math path, [batch, heads, sequence, sequence].
at::Tensor probabilities(const at::Tensor& q, const at::Tensor& k) {
  const int64_t s = q.size(2);
  at::Tensor scores = q.to(at::kFloat).matmul(k.to(at::kFloat).transpose(2, 3));
  scores.div_(std::sqrt(static_cast<double>(q.size(3))));
  const at::Tensor future = at::ones({s, s}, q.options().dtype(at::kBool)).triu(1);
  scores.masked_fill_(future, -std::numeric_limits<double>::infinity());
  return at::softmax(scores, -1);
}

}  // namespace

void set_meta_device(c10::DeviceType type) { g_meta_device = type; }
c10::DeviceType meta_device() { return g_meta_device; }

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k_, const at::Tensor& v_) {
  const at::Tensor k = repeat(k_, q.size(1)), v = repeat(v_, q.size(1));
  switch (kernel_for(q.device(), q.scalar_type())) {
    case Kernel::kCpuFlash: {
      auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true);
      return {out, {lse}};
    }
    case Kernel::kCudaFlash: {
      auto [out, lse, cq, ck, mq, mk, seed, offset, mask] =
          at::_scaled_dot_product_flash_attention(q, k, v, 0.0, true, false);
      return {out, {lse, seed, offset}};
    }
    case Kernel::kCudaEfficient: {
      auto [out, lse, seed, offset] =
          at::_scaled_dot_product_efficient_attention(q, k, v, {}, true, 0.0, true);
      return {out, {lse, seed, offset}};
    }
    case Kernel::kMath:
      break;
  }
  const at::Tensor out = probabilities(q, k).matmul(v.to(at::kFloat)).to(q.scalar_type());
  return {out.transpose(1, 2).contiguous().transpose(1, 2), {}};
}

AttentionGradients attention_backward(const at::Tensor& gout, const at::Tensor& q,
                                      const at::Tensor& k_, const at::Tensor& v_,
                                      const at::Tensor& out,
                                      const std::vector<at::Tensor>& extras) {
  const int64_t kv_heads = k_.size(1);
  const at::Tensor k = repeat(k_, q.size(1)), v = repeat(v_, q.size(1));
  at::Tensor gq, gk, gv;
  switch (kernel_for(q.device(), q.scalar_type())) {
    case Kernel::kCpuFlash:
      std::tie(gq, gk, gv) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          gout, q, k, v, out, extras[0], 0.0, true);
      break;
    case Kernel::kCudaFlash:
      std::tie(gq, gk, gv) = at::_scaled_dot_product_flash_attention_backward(
          gout, q, k, v, out, extras[0], {}, {}, q.size(2), k.size(2), 0.0, true, extras[1],
          extras[2]);
      break;
    case Kernel::kCudaEfficient: {
      at::Tensor bias;
      std::tie(gq, gk, gv, bias) = at::_scaled_dot_product_efficient_attention_backward(
          gout, q, k, v, {}, out, extras[0], extras[1], extras[2], 0.0, {true, true, true, false},
          true);
      break;
    }
    case Kernel::kMath: {
      const at::Tensor p = probabilities(q, k), g = gout.to(at::kFloat);
      const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
      gv = p.transpose(2, 3).matmul(g).to(q.scalar_type());
      const at::Tensor gp = g.matmul(v.to(at::kFloat).transpose(2, 3));
      const at::Tensor gs = p * (gp - (gp * p).sum(-1, true)) * scale;
      gq = gs.matmul(k.to(at::kFloat)).to(q.scalar_type());
      gk = gs.transpose(2, 3).matmul(q.to(at::kFloat)).to(q.scalar_type());
      break;
    }
  }
  return {gq, reduce(gk, kv_heads), reduce(gv, kv_heads)};
}

std::string attention_kernel(at::Device device, at::ScalarType type) {
  switch (kernel_for(device, type)) {
    case Kernel::kCpuFlash:
      return "flash (cpu)";
    case Kernel::kCudaFlash:
      return "flash (cuda)";
    case Kernel::kCudaEfficient:
      return "efficient (cuda)";
    case Kernel::kMath:
      break;
  }
  return "math";
}

}  // namespace compact
