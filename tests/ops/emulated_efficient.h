// SPDX-License-Identifier: Apache-2.0
// CUDA's memory-efficient attention on the CPU, by plain operations in f64, with what the kernel
// asks of its arguments: so that what is around it can be tested without a GPU. The noise comes
// from the default generator, by its seed, which the backward pass is given, as there.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <array>
#include <limits>
#include <mutex>
#include <optional>
#include <tuple>

namespace compact {

class EmulatedEfficient {
 public:
  EmulatedEfficient()
      : library_(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__) {
    library_.impl("_scaled_dot_product_efficient_attention", &forward);
    library_.impl("_scaled_dot_product_efficient_attention_backward", &backward);
  }

 private:
  using Tensor = at::Tensor;
  using MaybeTensor = std::optional<at::Tensor>;

  static void check(const Tensor& q, const Tensor& k, const Tensor& v, const MaybeTensor& bias) {
    const int64_t multiple = q.scalar_type() == at::kFloat ? 4 : 8;
    for (const Tensor& t : {q, k, v}) {
      TORCH_CHECK(t.stride(3) == 1 && t.size(3) % multiple == 0, "width ", t.sizes());
      TORCH_CHECK(t.stride(1) % multiple == 0 && t.stride(2) % multiple == 0, t.strides());
    }
    if (!bias || !bias->defined()) return;
    TORCH_CHECK(bias->sizes() == (at::IntArrayRef{q.size(0), q.size(1), q.size(2), k.size(2)}),
                "bias ", bias->sizes());
    TORCH_CHECK(bias->scalar_type() == q.scalar_type() && bias->stride(3) == 1, "bias");
    TORCH_CHECK(reinterpret_cast<uintptr_t>(bias->const_data_ptr()) % 16 == 0, "bias memory");
    for (int64_t i = 0; i < 3; ++i) TORCH_CHECK(bias->stride(i) % multiple == 0, "bias stride");
  }

  static Tensor scores(const Tensor& q, const Tensor& k, const MaybeTensor& bias, bool causal,
                       double scale) {
    Tensor s = q.to(at::kDouble).matmul(k.to(at::kDouble).transpose(2, 3)) * scale;
    if (bias && bias->defined()) s = s + bias->to(at::kDouble);
    if (!causal) return s;
    const Tensor future = at::ones({q.size(2), k.size(2)}, at::kBool).triu(1);
    return s.masked_fill(future, -std::numeric_limits<double>::infinity());
  }

  // 0, or 1 / (1 - dropout).
  static Tensor factors(const Tensor& like, double dropout, int64_t seed) {
    if (dropout == 0) return at::ones_like(like);
    const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
    return at::rand(like.sizes(), generator, like.options()).ge(dropout).to(at::kDouble) /
           (1 - dropout);
  }

  static Tensor by_token(const Tensor& t, at::ScalarType type) {
    return t.transpose(1, 2).contiguous().to(type).transpose(1, 2);
  }

  static std::tuple<Tensor, Tensor, Tensor, Tensor> forward(const Tensor& q, const Tensor& k,
                                                            const Tensor& v,
                                                            const MaybeTensor& bias, bool want_lse,
                                                            double dropout, bool causal,
                                                            std::optional<double> scale) {
    check(q, k, v, bias);
    const Tensor s = scores(q, k, bias, causal, scale.value());
    const Tensor sums = at::logsumexp(s, {-1});
    int64_t seed = 0;
    if (dropout > 0) {
      at::Generator generator = at::detail::getDefaultCPUGenerator();
      const std::lock_guard lock(generator.mutex());
      seed = static_cast<int64_t>(generator.current_seed());
      generator.set_current_seed(1);  // it moves on
    }
    const Tensor p = at::exp(s - sums.unsqueeze(-1)) * factors(s, dropout, seed);
    const int64_t rows = want_lse ? (q.size(2) + 31) / 32 * 32 : 0;
    const Tensor lse = at::full({q.size(0), q.size(1), rows},
                                std::numeric_limits<double>::quiet_NaN(), at::kFloat);
    if (want_lse) lse.narrow(2, 0, q.size(2)).copy_(sums);
    return {by_token(p.matmul(v.to(at::kDouble)), q.scalar_type()), lse,
            at::scalar_tensor(seed, at::kLong), at::scalar_tensor(int64_t{0}, at::kLong)};
  }

  static std::tuple<Tensor, Tensor, Tensor, Tensor> backward(
      const Tensor& gout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias,
      const Tensor& out, const Tensor& lse, const Tensor& seed, const Tensor&, double dropout,
      std::array<bool, 4> wanted, bool causal, std::optional<double> scale) {
    check(q, k, v, bias);
    TORCH_CHECK(!wanted[3] && lse.size(2) >= q.size(2), "logsumexp ", lse.sizes());
    const Tensor s = scores(q, k, bias, causal, scale.value()), g = gout.to(at::kDouble);
    const Tensor p = at::exp(s - lse.narrow(2, 0, q.size(2)).unsqueeze(-1).to(at::kDouble));
    const Tensor f = factors(s, dropout, seed.item<int64_t>());
    const Tensor delta = (g * out.to(at::kDouble)).sum(-1, true);
    const Tensor gp = g.matmul(v.to(at::kDouble).transpose(2, 3)) * f;
    const Tensor gs = p * (gp - delta) * scale.value();
    const at::ScalarType type = q.scalar_type();
    return {by_token(gs.matmul(k.to(at::kDouble)), type),
            by_token(gs.transpose(2, 3).matmul(q.to(at::kDouble)), type),
            by_token((p * f).transpose(2, 3).matmul(g), type), Tensor()};
  }

  torch::Library library_;
};

}  // namespace compact
