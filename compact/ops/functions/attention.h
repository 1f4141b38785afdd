// SPDX-License-Identifier: Apache-2.0
// Causal attention by the fastest exact kernel that LibTorch has for a device, type and width of
// heads. Called by name, so that nothing ever falls back to materialised scores unseen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace compact {

// kMath makes all scores, kChunks those of a chunk of queries at a time (masked_attention.h).
enum class AttentionKernel : uint8_t { kCpuFlash, kCudaFlash, kCudaEfficient, kMath, kChunks };

// A kernel, and the width that heads are padded to for it, with zeros.
struct AttentionChoice {
  AttentionKernel kernel;
  int64_t width;
  bool operator==(const AttentionChoice&) const = default;
};
// For heads of width `dim` on a type of device; `capability` of a GPU is 10 * major + minor.
AttentionChoice choose_attention(c10::DeviceType device, int capability, at::ScalarType type,
                                 int64_t dim);
// The same on this machine's GPU, or on the one that plans are for.
AttentionChoice choose_attention(c10::DeviceType device, at::ScalarType type, int64_t dim);
// The same for attention with padding or dropout of probabilities that has no window and no capped
// scores: the CPU's flash attention, which has no dropout, CUDA's efficient kernel, or chunks.
AttentionChoice choose_masked_attention(c10::DeviceType device, int capability, at::ScalarType type,
                                        int64_t dim, double dropout);
// The same on this machine's GPU; for the meta device, on the one that plans are for.
AttentionChoice choose_masked_attention(c10::Device device, at::ScalarType type, int64_t dim,
                                        double dropout);
// "flash (cuda)", "math"; "flash (cuda), heads of 20 padded to 24".
std::string attention_text(const AttentionChoice& choice, int64_t dim);

// q [batch, heads, sequence, dim], k and v [batch, kv_heads, sequence, dim], any strides; batch or
// sequence may be 0. Scores are multiplied by `scale`, where there is none by 1 / sqrt(dim).
struct AttentionResult {
  at::Tensor out;  // [batch, heads, sequence, dim], memory [batch, sequence, heads, dim]
  std::vector<at::Tensor> extras;  // logsumexp first, then what the kernel's backward asks for
};
using AttentionScale = std::optional<double>;
AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  AttentionScale scale = {});
// The same by the given kernel.
AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionChoice& choice, AttentionScale scale = {});

// repeat_groups: keys or values [batch, kv_heads, ...] repeated for each query head, [batch, heads,
// ...]. sum_groups, its adjoint: sums over the heads of each group.
at::Tensor repeat_groups(const at::Tensor& t, int64_t heads);
at::Tensor sum_groups(const at::Tensor& t, int64_t kv_heads);

class TokenCache;
// Attention of new tokens of one sequence to the tokens in this reader's cache and to themselves;
// appends their keys and values to the cache. No backward pass. q [1, heads, tokens, dim], k and v
// [1, kv_heads, tokens, dim] -> the shape of q.
at::Tensor attention_of_new_tokens(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   TokenCache& cache, const void* reader,
                                   AttentionScale scale = {});

struct AttentionGradients {
  at::Tensor gq, gk, gv;  // shapes of q, k, v
};
AttentionGradients attention_backward(const at::Tensor& gout, const at::Tensor& q,
                                      const at::Tensor& k, const at::Tensor& v,
                                      const at::Tensor& out, const std::vector<at::Tensor>& extras,
                                      AttentionScale scale = {});
AttentionGradients attention_backward(const at::Tensor& gout, const at::Tensor& q,
                                      const at::Tensor& k, const at::Tensor& v,
                                      const at::Tensor& out, const std::vector<at::Tensor>& extras,
                                      const AttentionChoice& choice, AttentionScale scale = {});

}  // namespace compact
