// SPDX-License-Identifier: Apache-2.0
// Fused attention on the meta device, as the CPU and CUDA have it.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <tuple>

#include "compact/kernels/gpu.h"
#include "compact/ops/memory/memory.h"
#include "compact/plan/meta/library_impl.h"

namespace compact {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<at::Tensor>;

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// As attention kernels return it: shape of `like`, memory [batch, sequence, heads, dim].
Tensor by_token(const Tensor& like) {
  const auto s = like.sizes();
  return at::empty({s[0], s[2], s[1], s[3]}, like.options()).transpose(1, 2);
}

// Bytes that the CPU's attention takes beside its results: a buffer for each thread, whose size
// depends on sequence, dim and type alone, so that one head shows it.
struct Scratch {
  int64_t forward = 0, backward = 0;
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
  const auto backward = probe.beside([&, out = out, lse = lse] {
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(x, x, x, x, out, lse, 0.0,
                                                                    true);
  });
  return known[key] = {forward_bytes, backward.second};
}

std::tuple<Tensor, Tensor> flash_cpu(const Tensor& q, const Tensor&, const Tensor&, double, bool,
                                     const MaybeTensor&, std::optional<double>) {
  const Tensor out = by_token(q),
               lse = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
  scratch_on(q, cpu_attention_scratch(q.size(2), q.size(3), q.scalar_type()).forward);
  return {out, lse};
}

std::tuple<Tensor, Tensor, Tensor> flash_cpu_backward(const Tensor&, const Tensor& q,
                                                      const Tensor& k, const Tensor& v,
                                                      const Tensor&, const Tensor&, double, bool,
                                                      const MaybeTensor&, std::optional<double>) {
  const Tensor gq = by_token(q), gk = by_token(k), gv = by_token(v);
  scratch_on(q, cpu_attention_scratch(q.size(2), q.size(3), q.scalar_type()).backward);
  return {gq, gk, gv};
}

// What the CUDA kernels of attention take; LibTorch's own meta devices do not ask.
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
// sums must not depend on the order of blocks, in as many parts as fill the processors.
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
  return {gq, gk, gv};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_cuda(const Tensor& q, const Tensor&,
                                                          const Tensor&, const MaybeTensor&, bool,
                                                          double, bool, std::optional<double>) {
  check_efficient(q);
  const auto state = q.options().dtype(at::kLong);
  return {by_token(q),
          at::empty({q.size(0), q.size(1), round_up(q.size(2), 32)}, q.options().dtype(at::kFloat)),
          at::empty({}, state), at::empty({}, state)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_cuda_backward(
    const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&, const Tensor&,
    const Tensor&, const Tensor&, const Tensor&, double, std::array<bool, 4>, bool,
    std::optional<double>) {
  const Tensor gq = by_token(q), gk = by_token(k), gv = by_token(v);
  const Tensor delta = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
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
