// SPDX-License-Identifier: Apache-2.0
// Fused attention on the meta device, as the CPU and CUDA have it.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "compact/kernels/gpu.h"
#include "compact/ops/cpu/bf16_products.h"
#include "compact/ops/memory/memory.h"
#include "compact/plan/meta/library_impl.h"

namespace compact {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<at::Tensor>;

int64_t blocks_of(int64_t n, int64_t block) { return (n + block - 1) / block; }
int64_t round_up(int64_t n, int64_t multiple) { return blocks_of(n, multiple) * multiple; }

// As attention kernels return it: shape of `like`, memory [batch, sequence, heads, dim].
Tensor by_token(const Tensor& like) {
  const auto s = like.sizes();
  return at::empty({s[0], s[2], s[1], s[3]}, like.options()).transpose(1, 2);
}

// The CPU's result: as by_token(), or with memory in the order of q's; LibTorch's versions differ.
Tensor result_of_cpu(const Tensor& q) {
  static const bool follows = [] {
    const at::NoGradGuard no_grad;
    const CpuProbe probe;  // none of it counts
    const Tensor x = at::zeros({1, 2, 2, 8}, at::device(at::kCPU).dtype(at::kFloat));
    const auto [out, lse] =
        at::_scaled_dot_product_flash_attention_for_cpu(x, x, x, 0.0, /*is_causal=*/true);
    return out.is_contiguous();
  }();
  return follows ? at::empty_like(q) : by_token(q);
}

// Bytes that the CPU's attention takes beside its results: a buffer for each thread, whose size
// depends on sequence, dim and type alone, so that one head shows it.
struct Scratch {
  int64_t forward = 0, backward = 0;
  int64_t of_a_thread = 0;  // which each thread of the backward pass takes beside
};
Scratch cpu_attention_scratch(int64_t length, int64_t dim, at::ScalarType type) {
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, int64_t, at::ScalarType>, Scratch> known;
  length = std::min<int64_t>(length, 2048);  // from 768 up the tiles are the same
  const std::lock_guard lock(mutex);
  const std::tuple key(length, dim, type);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const at::NoGradGuard no_grad;
  const CpuProbe probe;
  const Tensor x = at::zeros({1, 1, length, dim}, at::device(at::kCPU).dtype(type));
  const auto [forward, forward_bytes] = probe.beside(
      [&] { return at::_scaled_dot_product_flash_attention_for_cpu(x, x, x, 0.0, true); });
  const auto [out, lse] = forward;
  // One head is one thread's, this one's: after three gradients and the buffers of all threads
  // (one, two in half types) come its own, some small and, in half types, what its products take.
  std::vector<int64_t> asked;
  const auto backward = probe.beside([&, out = out, lse = lse] {
    const auto see = [&](int64_t bytes) { asked.push_back(bytes); };
    const WatchAllocations watch(see);
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(x, x, x, x, out, lse, 0.0,
                                                                    true);
  });
  const size_t shared = type == at::kBFloat16 || type == at::kHalf ? 5 : 4;
  int64_t own = asked.size() > shared ? asked[shared] : 0;
  if (asked.size() > shared + 1) {
    constexpr int64_t kNumber = 4;  // a scalar beside each product
    own +=
        kNumber + *std::max_element(asked.begin() + static_cast<int64_t>(shared) + 1, asked.end());
  }
  return known[key] = {forward_bytes, backward.second - own, own};
}

std::tuple<Tensor, Tensor> flash_cpu(const Tensor& q, const Tensor& k, const Tensor& v,
                                     double dropout, bool causal, const MaybeTensor& mask,
                                     std::optional<double> scale) {
  if (converts_bf16(q)) return converted_attention(q, k, v, dropout, causal, mask, scale);
  const Tensor out = result_of_cpu(q),
               lse = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
  scratch_on(q, cpu_attention_scratch(q.size(2), q.size(3), q.scalar_type()).forward);
  return {out, lse};
}

std::tuple<Tensor, Tensor, Tensor> flash_cpu_backward(const Tensor& gout, const Tensor& q,
                                                      const Tensor& k, const Tensor& v,
                                                      const Tensor& out, const Tensor& lse,
                                                      double dropout, bool causal,
                                                      const MaybeTensor& mask,
                                                      std::optional<double> scale) {
  if (converts_bf16(q)) {
    return converted_attention_backward(gout, q, k, v, out, lse, dropout, causal, mask, scale);
  }
  const Tensor gq = by_token(q), gk = by_token(k), gv = by_token(v);
  const Scratch scratch = cpu_attention_scratch(q.size(2), q.size(3), q.scalar_type());
  // Rows of scores, of which a thread has one in f32, are gone before the next thread begins where
  // there is little to do.
  constexpr int64_t kRow = 1024;
  const int64_t threads = scratch.of_a_thread > kRow
                              ? std::min<int64_t>(q.size(0) * q.size(1), at::get_num_threads())
                              : 1;
  scratch_on(q, scratch.backward + threads * scratch.of_a_thread);
  return {gq, gk, gv};
}

// Checks what the CUDA kernels of attention accept; LibTorch's meta kernels do not.
void check_flash(const Tensor& q) {
  const auto type = q.scalar_type();
  TORCH_CHECK(type == at::kBFloat16 || type == at::kHalf,
              "flash attention on CUDA takes bf16 and f16, is given ", type);
  TORCH_CHECK(q.size(3) % 8 == 0 && q.size(3) <= 256,
              "flash attention on CUDA takes heads of a multiple of 8 up to 256, is given ",
              q.size(3));
}
void check_efficient(const Tensor& q) {
  const int64_t multiple = q.scalar_type() == at::kFloat ? 4 : 8;
  TORCH_CHECK(q.scalar_type() != at::kDouble && q.size(3) % multiple == 0,
              "efficient attention on CUDA takes heads of a multiple of ", multiple, ", is given ",
              q.size(3), " in ", q.scalar_type());
}

// CUDA, FlashAttention-2: logsumexp in f32 and the generator's state.
std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>
flash_cuda(const Tensor& q, const Tensor& k, const Tensor&, double, bool, bool,
           std::optional<double>) {
  check_flash(q);
  const auto state = q.options().dtype(at::kLong);
  return {by_token(q),
          at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat)),
          Tensor(),
          Tensor(),
          q.size(2),
          k.size(2),
          at::empty({2}, state),
          at::empty({}, state),
          Tensor()};
}

// Its backward pass sums the queries' gradient in f32, sequence and dim rounded up to tiles; where
// sums must not depend on the order of blocks, in as many parts as fill the processors. The
// gradients of keys and values are made for every head of a group, then summed.
std::tuple<Tensor, Tensor, Tensor> flash_cuda_backward(const Tensor&, const Tensor& q,
                                                       const Tensor& k, const Tensor& v,
                                                       const Tensor&, const Tensor&, const Tensor&,
                                                       const Tensor&, c10::SymInt, c10::SymInt,
                                                       double, bool, const Tensor&, const Tensor&,
                                                       std::optional<double>) {
  const Tensor gq = by_token(q), gk = by_token(k), gv = by_token(v);
  const int64_t length = round_up(q.size(2), 128), dim = round_up(q.size(3), 32);
  const auto f32 = q.options().dtype(at::kFloat);
  const Tensor sums = at::empty({q.size(0), q.size(1), length}, f32);
  const int64_t blocks = q.size(0) * q.size(1);
  const int64_t parts = at::globalContext().deterministicAlgorithms() && blocks > 0
                            ? (kernels::planned_gpu().processors + blocks - 1) / blocks
                            : 1;
  const Tensor accumulated = at::empty({parts, q.size(0), q.size(1), length, dim}, f32);
  Tensor k_heads, v_heads;
  if (k.size(1) != q.size(1)) {
    k_heads = at::empty({k.size(0), k.size(2), q.size(1), k.size(3)}, k.options());
    v_heads = at::empty_like(k_heads);
  }
  return {gq, gk, gv};
}

// Rows of whole vectors, as the kernel reads it; LibTorch's top operation would pad it.
void check_bias(const Tensor& q, const Tensor& k, const MaybeTensor& bias) {
  if (!bias || !bias->defined()) return;
  const int64_t multiple = q.scalar_type() == at::kFloat ? 4 : 8;
  bool aligned = bias->dim() == 4 && bias->stride(3) == 1;
  for (int64_t i = 0; aligned && i < 3; ++i) aligned = bias->stride(i) % multiple == 0;
  TORCH_CHECK(aligned && bias->scalar_type() == q.scalar_type() &&
                  bias->sizes() == (at::IntArrayRef{q.size(0), q.size(1), q.size(2), k.size(2)}),
              "efficient attention on CUDA takes a bias of queries' type, one for each score, of "
              "rows of whole vectors, is given ",
              bias->scalar_type(), " ", bias->sizes(), " strides ", bias->strides());
}

// CUDA, memory-efficient attention: logsumexp in f32, wide heads of half types summed in f32, and
// the generator's state, which is the host's where probabilities are dropped.
std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_cuda(const Tensor& q, const Tensor& k,
                                                          const Tensor&, const MaybeTensor& bias,
                                                          bool logsumexp, double dropout, bool,
                                                          std::optional<double>) {
  check_efficient(q);
  check_bias(q, k, bias);
  const auto state = at::device(dropout > 0 ? at::kCPU : at::kMeta).dtype(at::kLong);
  const auto f32 = q.options().dtype(at::kFloat);
  const Tensor seed = at::empty({}, state), offset = at::empty({}, state), out = by_token(q);
  const int64_t rows = logsumexp ? round_up(q.size(2), 32) : 0;
  const Tensor lse = at::empty({q.size(0), q.size(1), rows}, f32);
  if (q.scalar_type() != at::kFloat && q.size(3) > 128) at::empty(q.sizes(), f32);
  return {out, lse, seed, offset};
}

// The blocks of its backward pass: the first kernel of LibTorch's list (cutlassB.h) for a GPU from
// Volta on that takes the width and fits into the memory of a block. That is known of the largest
// blocks alone, which 99 KiB do not hold.
struct EfficientBlocks {
  int64_t queries, keys;
  bool accumulates;  // gradients of keys and values in f32 beside the results
};
EfficientBlocks efficient_blocks(at::ScalarType type, int64_t dim, bool dropout) {
  const int capability = kernels::planned_gpu().capability;
  const bool ampere = capability >= 80, f32 = type == at::kFloat;
  if (dim <= 64 || (f32 && !ampere)) return {64, 64, false};
  if (f32) return {128, 64, false};
  if (dim > 128) return {128, 64, true};
  if (!ampere) return {128, 64, false};
  if (dim <= 96 && !dropout && (capability == 86 || capability == 89)) return {128, 64, false};
  if (kernels::planned_gpu().shared_memory < (128 << 10)) return {64, 64, true};
  return {128, 128, false};
}

// Its sums: queries' gradient block by block, beside a lock and a counter of 16 bytes; keys are
// split among blocks, as many as LibTorch's heuristic says.
int64_t efficient_workspace(const Tensor& q, const Tensor& k, bool dropout) {
  const EfficientBlocks b = efficient_blocks(q.scalar_type(), q.size(3), dropout);
  const int64_t heads = q.size(0) * q.size(1), dim = q.size(3), keys = k.size(2);
  int64_t splits = blocks_of(keys, b.keys);
  if (heads >= 256 && keys <= 2 * b.keys) splits = 1;
  if (b.accumulates) splits = std::min(splits, 200 / std::max<int64_t>(heads, 1));
  if (splits < 1 || at::globalContext().deterministicAlgorithms()) splits = 1;
  const int64_t of_keys = b.accumulates ? 2 * splits * b.keys * round_up(dim, b.queries) : 0;
  const int64_t of_queries =
      blocks_of(q.size(2), b.queries) * blocks_of(dim, b.keys) * (4 + b.queries * b.keys);
  return heads * round_up(of_keys + of_queries, 4) * static_cast<int64_t>(sizeof(float));
}

// Sums of the output times its gradient are made in f32 by operations of their own, the gradient's
// product with it too; the kernels of half types make them. A gradient of the output that is not
// contiguous by token would be copied; here none is given.
std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_cuda_backward(
    const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias,
    const Tensor&, const Tensor&, const Tensor& seed, const Tensor& offset, double dropout,
    std::array<bool, 4>, bool, std::optional<double>) {
  check_efficient(q);
  check_bias(q, k, bias);
  TORCH_CHECK(dropout == 0 || (seed.is_cpu() && offset.is_cpu()),
              "efficient attention on CUDA reads the seed of its dropout on the host");
  const Tensor gq = by_token(q), gk = by_token(k), gv = by_token(v);
  const auto f32 = q.options().dtype(at::kFloat);
  const auto sums = [&] { return at::empty({q.size(0), q.size(1), q.size(2)}, f32); };
  Tensor delta;
  if (q.scalar_type() == at::kFloat) {
    const Tensor product = at::empty(q.sizes(), f32), token_sums = sums();
    delta = q.size(1) > 1 && q.size(2) > 1 ? sums() : token_sums;
  } else {
    delta = sums();
  }
  scratch_on(q, efficient_workspace(q, k, dropout > 0));
  return {gq, gk, gv, Tensor()};
}

}  // namespace

void add_attention(MetaLibrary& library) {
  library.add("_scaled_dot_product_flash_attention_for_cpu", &flash_cpu);
  library.add("_scaled_dot_product_flash_attention_for_cpu_backward", &flash_cpu_backward);
  library.add("_scaled_dot_product_flash_attention", &flash_cuda);
  library.add("_scaled_dot_product_flash_attention_backward", &flash_cuda_backward);
  library.add("_scaled_dot_product_efficient_attention", &efficient_cuda);
  library.add("_scaled_dot_product_efficient_attention_backward", &efficient_cuda_backward);
}

}  // namespace compact
