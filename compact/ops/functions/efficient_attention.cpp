// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/functions/efficient_attention.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <limits>
#include <mutex>
#include <optional>

#include "compact/base/check.h"
#include "compact/ops/functions/attention_heads_impl.h"

namespace compact {
namespace {

// While it lives, the device's default generator, the only one that the kernel takes, is seeded
// with the key at offset 0; its state is restored afterwards. An operation of LibTorch that drew
// from it on another thread meanwhile would get the key's numbers, too; nothing here does that.
class NoiseOfKey {
 public:
  NoiseOfKey(at::Device device, uint64_t key)
      : alone_(mutex()), generator_(at::globalContext().defaultGenerator(device)) {
    const std::lock_guard lock(generator_.mutex());
    before_ = generator_.get_state();
    generator_.set_current_seed(key);
  }
  ~NoiseOfKey() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(before_);
  }
  NoiseOfKey(const NoiseOfKey&) = delete;
  NoiseOfKey& operator=(const NoiseOfKey&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }

  std::lock_guard<std::mutex> alone_;
  at::Generator generator_;
  at::Tensor before_;
};

std::optional<at::Tensor> bias_for(const at::Tensor& q, const MaskedAttention& how) {
  if (!how.lengths.defined()) return {};
  return padding_bias(how.lengths, q.scalar_type(), {q.size(0), q.size(1), q.size(2), q.size(2)});
}
// One row for all heads and queries: the CPU's kernel broadcasts it.
std::optional<at::Tensor> row_bias_for(const at::Tensor& q, const MaskedAttention& how) {
  if (!how.lengths.defined()) return {};
  return padding_bias(how.lengths, q.scalar_type(), {q.size(0), 1, 1, q.size(2)});
}

void check_efficient_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const MaskedAttention& how) {
  check_masked_attention(q, k, v, how);
  COMPACT_CHECK(how.window == 0 && how.softcap == 0 && k.sizes() == q.sizes(),
                "[attention] no fused kernel has windows, capped scores or more keys than queries");
}

}  // namespace

at::Tensor padding_bias(const at::Tensor& lengths, at::ScalarType type, at::IntArrayRef scores) {
  constexpr int64_t kAligned = 16;  // elements; LibTorch asks for 16 bytes
  const int64_t batch = scores[0], keys = scores[3],
                row = (keys + kAligned - 1) / kAligned * kAligned;
  const at::Tensor padding = at::arange(row, lengths.options()).ge(lengths.unsqueeze(1));
  return at::zeros({batch, row}, lengths.options().dtype(type))
      .masked_fill_(padding, -std::numeric_limits<double>::infinity())
      .as_strided(scores, {row, 0, 0, 1});  // expand would leave the stride of a single query
}

AttentionResult efficient_attention(const at::Tensor& q_, const at::Tensor& k_,
                                    const at::Tensor& v_, const MaskedAttention& how, int64_t width,
                                    bool want_extras) {
  check_efficient_attention(q_, k_, v_, how);
  const int64_t dim = q_.size(3);
  const double scale = scale_of(dim, how.scale);  // of the unpadded width
  const at::Tensor q = padded(q_, width), k = padded(k_, width), v = padded(v_, width);
  const std::optional<at::Tensor> bias = bias_for(q, how);
  std::optional<NoiseOfKey> noise;
  if (how.dropout > 0 && !q.is_meta()) noise.emplace(q.device(), how.key);
  const auto [out, lse, seed, offset] = at::_scaled_dot_product_efficient_attention(
      q, k, v, bias, want_extras, how.dropout, how.causal, scale);
  AttentionResult r{unpadded(out, dim), {}};
  if (want_extras) r.extras = {lse, seed, offset};
  return r;
}

AttentionGradients efficient_attention_backward(const at::Tensor& gout_, const at::Tensor& q_,
                                                const at::Tensor& k_, const at::Tensor& v_,
                                                const at::Tensor& out_,
                                                const std::vector<at::Tensor>& extras,
                                                const MaskedAttention& how, int64_t width) {
  check_efficient_attention(q_, k_, v_, how);
  const int64_t dim = q_.size(3);
  const at::Tensor q = padded(q_, width), k = padded(k_, width), v = padded(v_, width),
                   gout = padded(gout_, width), out = padded(out_, width);
  const at::Tensor bias = bias_for(q, how).value_or(at::Tensor());
  const auto [gq, gk, gv, gbias] = at::_scaled_dot_product_efficient_attention_backward(
      gout, q, k, v, bias, out, extras[0], extras[1], extras[2], how.dropout,
      {true, true, true, false}, how.causal, scale_of(dim, how.scale));
  const auto whole = [&](const at::Tensor& g) { return g.narrow(3, 0, dim); };
  return {whole(gq), whole(gk), whole(gv)};
}

AttentionResult padded_flash_attention(const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, const MaskedAttention& how) {
  check_efficient_attention(q, k, v, how);
  COMPACT_CHECK(how.dropout == 0, "[attention] flash attention on a CPU has no dropout, is given ",
                how.dropout);
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      dense_rows(q), dense_rows(k), dense_rows(v), 0.0, how.causal, row_bias_for(q, how),
      scale_of(q.size(3), how.scale));
  return {out, {lse}};
}

AttentionGradients padded_flash_attention_backward(const at::Tensor& gout, const at::Tensor& q,
                                                   const at::Tensor& k, const at::Tensor& v,
                                                   const at::Tensor& out,
                                                   const std::vector<at::Tensor>& extras,
                                                   const MaskedAttention& how) {
  check_efficient_attention(q, k, v, how);
  auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      dense_rows(gout), dense_rows(q), dense_rows(k), dense_rows(v), dense_rows(out), extras[0],
      0.0, how.causal, row_bias_for(q, how), scale_of(q.size(3), how.scale));
  return {gq, gk, gv};
}

}  // namespace compact
