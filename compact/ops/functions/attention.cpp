// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/kernels/gpu.h"
#include "compact/ops/functions/attention_heads_impl.h"
#include "compact/ops/functions/token_cache.h"

namespace compact {
namespace {

using Kernel = AttentionKernel;

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// FlashAttention-2 of LibTorch: half types from Ampere on, heads of at most 256. Its backward pass
// lacks the shared memory for (192, 224] on the smaller chips.
bool flash_takes(int capability, at::ScalarType type, int64_t dim) {
  if (type != at::kBFloat16 && type != at::kHalf) return false;
  const bool small = (capability > 80 && capability < 90) || capability >= 120;
  return capability >= 80 && dim <= 256 && !(small && dim > 192);
}

// The memory-efficient kernel: any width; bf16 from Ampere on.
bool efficient_takes(int capability, at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || (type == at::kBFloat16 && capability >= 80);
}
AttentionChoice efficient(at::ScalarType type, int64_t dim) {
  return {Kernel::kCudaEfficient, round_up(dim, type == at::kFloat ? 4 : 8)};
}

AttentionChoice choice_for(const at::Tensor& q) {
  return choose_attention(device_type_of(q), q.scalar_type(), q.size(3));
}

// Keys or values as the kernel takes them: as groups for CUDA's flash attention, else by query
// head.
at::Tensor for_kernel(const at::Tensor& t, const AttentionChoice& choice, int64_t heads) {
  const at::Tensor wide = padded(t, choice.width);
  return choice.kernel == Kernel::kCudaFlash ? wide : repeat_groups(wide, heads);
}

// The type that the math path computes in.
at::ScalarType math_type(const at::Tensor& q) {
  return q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Probabilities of the math path, [batch, heads, sequence, sequence].
at::Tensor probabilities(const at::Tensor& q, const at::Tensor& k, double scale) {
  const int64_t s = q.size(2);
  const at::ScalarType type = math_type(q);
  at::Tensor scores = q.to(type).matmul(k.to(type).transpose(2, 3));
  scores.div_(1 / scale);
  const at::Tensor future = at::ones({s, s}, q.options().dtype(at::kBool)).triu(1);
  scores.masked_fill_(future, -std::numeric_limits<double>::infinity());
  return at::softmax(scores, -1);
}

}  // namespace

at::Tensor repeat_groups(const at::Tensor& t, int64_t heads) {
  if (t.size(1) == heads) return t;
  return t.unsqueeze(2)
      .expand({t.size(0), t.size(1), heads / t.size(1), t.size(2), t.size(3)})
      .reshape({t.size(0), heads, t.size(2), t.size(3)});
}

at::Tensor sum_groups(const at::Tensor& t, int64_t kv_heads) {
  if (t.size(1) == kv_heads) return t;
  return t.reshape({t.size(0), kv_heads, t.size(1) / kv_heads, t.size(2), t.size(3)}).sum(2);
}

AttentionChoice choose_attention(c10::DeviceType device, int capability, at::ScalarType type,
                                 int64_t dim) {
  if (device == c10::kCPU) return {Kernel::kCpuFlash, dim};
  if (device != c10::kCUDA) return {Kernel::kMath, dim};
  if (flash_takes(capability, type, dim)) return {Kernel::kCudaFlash, round_up(dim, 8)};
  return efficient_takes(capability, type) ? efficient(type, dim)
                                           : AttentionChoice{Kernel::kMath, dim};
}

AttentionChoice choose_attention(c10::DeviceType device, at::ScalarType type, int64_t dim) {
  return choose_attention(device, kernels::planned_gpu().capability, type, dim);
}

AttentionChoice choose_masked_attention(c10::DeviceType device, int capability, at::ScalarType type,
                                        int64_t dim, double dropout) {
  if (device == c10::kCPU && dropout == 0) return {Kernel::kCpuFlash, dim};
  const bool fused = device == c10::kCUDA && efficient_takes(capability, type);
  return fused ? efficient(type, dim) : AttentionChoice{Kernel::kChunks, dim};
}

AttentionChoice choose_masked_attention(c10::Device device, at::ScalarType type, int64_t dim,
                                        double dropout) {
  return choose_masked_attention(device_type_of(device), kernels::planned_gpu().capability, type,
                                 dim, dropout);
}

std::string attention_text(const AttentionChoice& choice, int64_t dim) {
  constexpr const char* kNames[] = {"flash (cpu)", "flash (cuda)", "efficient (cuda)", "math",
                                    "chunks of scores"};
  const std::string name = kNames[static_cast<size_t>(choice.kernel)];
  return choice.width == dim ? name : cat(name, ", heads of ", dim, " padded to ", choice.width);
}

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  AttentionScale scale) {
  return attention_forward(q, k, v, choice_for(q), scale);
}

AttentionResult attention_forward(const at::Tensor& q_, const at::Tensor& k_, const at::Tensor& v_,
                                  const AttentionChoice& choice, AttentionScale given_scale) {
  const int64_t dim = q_.size(3);
  if (q_.numel() == 0) {  // kernels divide by the size
    const at::Tensor out = at::empty({q_.size(0), q_.size(2), q_.size(1), dim}, q_.options());
    const at::Tensor lse =
        at::empty({q_.size(0), q_.size(1), q_.size(2)}, q_.options().dtype(at::kFloat));
    return {out.transpose(1, 2), {lse}};
  }
  const double scale = scale_of(dim, given_scale);  // of the unpadded width
  const at::Tensor q = padded(q_, choice.width), k = for_kernel(k_, choice, q.size(1)),
                   v = for_kernel(v_, choice, q.size(1));
  switch (choice.kernel) {
    case Kernel::kCpuFlash: {
      auto [out, lse] =
          at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true, {}, scale);
      return {unpadded(out, dim), {lse}};
    }
    case Kernel::kCudaFlash: {
      auto [out, lse, cq, ck, mq, mk, seed, offset, mask] =
          at::_scaled_dot_product_flash_attention(q, k, v, 0.0, true, false, scale);
      return {unpadded(out, dim), {lse, seed, offset}};
    }
    case Kernel::kCudaEfficient: {
      auto [out, lse, seed, offset] =
          at::_scaled_dot_product_efficient_attention(q, k, v, {}, true, 0.0, true, scale);
      return {unpadded(out, dim), {lse, seed, offset}};
    }
    case Kernel::kMath:
    case Kernel::kChunks:
      break;
  }
  const at::Tensor out = probabilities(q, k, scale).matmul(v.to(math_type(q))).to(q.scalar_type());
  return {out.transpose(1, 2).contiguous().transpose(1, 2), {}};
}

namespace {

// Attention of the last t tokens to all tokens up to themselves, in f32; makes the scores.
at::Tensor attention_of_last(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             AttentionScale scale) {
  const int64_t heads = q.size(1), t = q.size(2), d = q.size(3);
  const int64_t kv_heads = k.size(1), all = k.size(2), group = heads / kv_heads;
  // The queries of a group are rows of one product: keys and values are not repeated.
  const at::Tensor rows = q.reshape({kv_heads, group * t, d}).to(at::kFloat);
  at::Tensor scores = rows.bmm(k[0].to(at::kFloat).transpose(1, 2));  // [kv_heads, group*t, all]
  scores.div_(scale ? 1 / *scale : std::sqrt(static_cast<double>(d)));
  if (t > 1) {
    const at::Tensor future = at::ones({t, all}, q.options().dtype(at::kBool)).triu(all - t + 1);
    scores.view({kv_heads, group, t, all})
        .masked_fill_(future, -std::numeric_limits<double>::infinity());
  }
  return at::softmax(scores, -1)
      .bmm(v[0].to(at::kFloat))
      .view({1, heads, t, d})
      .to(q.scalar_type());
}

}  // namespace

at::Tensor attention_of_new_tokens(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   TokenCache& cache, const void* reader, AttentionScale scale) {
  const bool first = cache.length() == 0;
  const auto [keys, values] = cache.append(reader, k, v);
  // The first pass, a prompt, takes the kernel of training, which does not hold all scores at once.
  return first ? attention_forward(q, keys, values, scale).out
               : attention_of_last(q, keys, values, scale);
}

AttentionGradients attention_backward(const at::Tensor& gout, const at::Tensor& q,
                                      const at::Tensor& k, const at::Tensor& v,
                                      const at::Tensor& out, const std::vector<at::Tensor>& extras,
                                      AttentionScale scale) {
  return attention_backward(gout, q, k, v, out, extras, choice_for(q), scale);
}

AttentionGradients attention_backward(const at::Tensor& gout_, const at::Tensor& q_,
                                      const at::Tensor& k_, const at::Tensor& v_,
                                      const at::Tensor& out_, const std::vector<at::Tensor>& extras,
                                      const AttentionChoice& choice, AttentionScale given_scale) {
  const int64_t dim = q_.size(3), kv_heads = k_.size(1);
  if (q_.numel() == 0) {
    const auto zeros = [](const at::Tensor& t) { return at::zeros(t.sizes(), t.options()); };
    return {zeros(q_), zeros(k_), zeros(v_)};
  }
  const double scale = scale_of(dim, given_scale);
  const at::Tensor q = padded(q_, choice.width), k = for_kernel(k_, choice, q.size(1)),
                   v = for_kernel(v_, choice, q.size(1)), gout = padded(gout_, choice.width),
                   out = padded(out_, choice.width);
  at::Tensor gq, gk, gv;
  switch (choice.kernel) {
    case Kernel::kCpuFlash:
      std::tie(gq, gk, gv) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          gout, q, k, v, out, extras[0], 0.0, true, {}, scale);
      break;
    case Kernel::kCudaFlash:
      std::tie(gq, gk, gv) = at::_scaled_dot_product_flash_attention_backward(
          gout, q, k, v, out, extras[0], {}, {}, q.size(2), k.size(2), 0.0, true, extras[1],
          extras[2], scale);
      break;
    case Kernel::kCudaEfficient: {
      at::Tensor bias;
      std::tie(gq, gk, gv, bias) = at::_scaled_dot_product_efficient_attention_backward(
          gout, q, k, v, {}, out, extras[0], extras[1], extras[2], 0.0, {true, true, true, false},
          true, scale);
      break;
    }
    case Kernel::kMath:
    case Kernel::kChunks: {
      const at::ScalarType type = math_type(q);
      const at::Tensor p = probabilities(q, k, scale), g = gout.to(type);
      gv = p.transpose(2, 3).matmul(g).to(q.scalar_type());
      const at::Tensor gp = g.matmul(v.to(type).transpose(2, 3));
      const at::Tensor gs = p * (gp - (gp * p).sum(-1, true)) * scale;
      gq = gs.matmul(k.to(type)).to(q.scalar_type());
      gk = gs.transpose(2, 3).matmul(q.to(type)).to(q.scalar_type());
      break;
    }
  }
  const auto whole = [&](const at::Tensor& g) { return g.narrow(3, 0, dim); };
  return {whole(gq), sum_groups(whole(gk), kv_heads), sum_groups(whole(gv), kv_heads)};
}

}  // namespace compact
