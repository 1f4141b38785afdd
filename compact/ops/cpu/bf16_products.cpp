// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/cpu/bf16_products.h"

#include <ATen/ATen.h>
#include <ATen/CPUFunctions.h>
#include <ATen/CompositeExplicitAutogradFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_native.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "compact/base/check.h"
#include "compact/ops/autograd/quiet.h"

namespace compact {
namespace {

using at::Scalar;
using at::Tensor;

bool all_bf16(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16;
}
// Whether these are matrices (kDim 2), or batches of them (3), that can be multiplied. Other
// operands are left to LibTorch, which refuses those that do not fit.
template <int kDim>
bool ours(const Tensor& a, const Tensor& b) {
  return all_bf16(a, b) && a.dim() == kDim && b.dim() == kDim && a.size(-1) == b.size(-2) &&
         (kDim == 2 || a.size(0) == b.size(0));
}
std::vector<int64_t> sizes_of(const Tensor& a, const Tensor& b) {
  std::vector<int64_t> sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  return sizes;
}
// Whether `out` is a bf16 tensor of the size of the product that shares no memory with the
// operands.
bool apart(const Tensor& out, const Tensor& a, const Tensor& b) {
  return out.scalar_type() == at::kBFloat16 && out.sizes() == sizes_of(a, b) &&
         !out.is_alias_of(a) && !out.is_alias_of(b);
}
bool expands(const Tensor& self, const std::vector<int64_t>& sizes) {
  if (self.scalar_type() != at::kBFloat16 || self.dim() > static_cast<int64_t>(sizes.size())) {
    return false;
  }
  for (int64_t i = 1; i <= self.dim(); ++i) {
    const int64_t size = self.size(-i);
    if (size != 1 && size != sizes[sizes.size() - static_cast<size_t>(i)]) return false;
  }
  return true;
}

template <int kDim>
Tensor mm(const Tensor& a, const Tensor& b) {
  if (!ours<kDim>(a, b)) return kDim == 2 ? at::cpu::mm(a, b) : at::cpu::bmm(a, b);
  Tensor out = at::empty(sizes_of(a, b), a.options());
  converted_product(out, {}, a, b);
  return out;
}
template <int kDim>
Tensor& mm_out(const Tensor& a, const Tensor& b, Tensor& out) {
  if (!ours<kDim>(a, b) || !apart(out, a, b)) {
    return kDim == 2 ? at::cpu::mm_out(out, a, b) : at::cpu::bmm_out(out, a, b);
  }
  converted_product(out, {}, a, b);
  return out;
}
template <int kDim>
Tensor addmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
             const Scalar& alpha) {
  if (!ours<kDim>(a, b) || !expands(self, sizes_of(a, b))) {
    return kDim == 2 ? at::cpu::addmm(self, a, b, beta, alpha)
                     : at::cpu::baddbmm(self, a, b, beta, alpha);
  }
  const Tensor out = at::empty(sizes_of(a, b), a.options());
  converted_product(out, self.expand(out.sizes()), a, b, beta.toDouble(), alpha.toDouble());
  return out;
}
template <int kDim>
Tensor& addmm_out(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  if (!ours<kDim>(a, b) || !expands(self, sizes_of(a, b)) || !apart(out, a, b) ||
      (out.is_alias_of(self) && !out.is_same(self))) {
    return kDim == 2 ? at::cpu::addmm_out(out, self, a, b, beta, alpha)
                     : at::cpu::baddbmm_out(out, self, a, b, beta, alpha);
  }
  converted_product(out, self.expand(out.sizes()), a, b, beta.toDouble(), alpha.toDouble());
  return out;
}
template <int kDim>
Tensor& addmm_in_place(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                       const Scalar& alpha) {
  if (!ours<kDim>(a, b) || !apart(self, a, b)) {
    return kDim == 2 ? at::cpu::addmm_(self, a, b, beta, alpha)
                     : at::cpu::baddbmm_(self, a, b, beta, alpha);
  }
  converted_product(self, self, a, b, beta.toDouble(), alpha.toDouble());
  return self;
}

// Whether these can be convolved; others are left to LibTorch, as products are.
bool convolves(const Tensor& x, const Tensor& w, bool transposed, int64_t groups) {
  return all_bf16(x, w) && x.dim() >= 3 && x.dim() == w.dim() && x.numel() > 0 && w.numel() > 0 &&
         groups > 0 && x.size(1) == (transposed ? w.size(0) : w.size(1) * groups);
}
Tensor convolution(const Tensor& x, const Tensor& w, const std::optional<Tensor>& bias,
                   at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                   bool transposed, at::IntArrayRef output_padding, int64_t groups, bool benchmark,
                   bool deterministic, bool cudnn_enabled, bool allow_tf32) {
  const Tensor added = bias.value_or(Tensor());
  if (!convolves(x, w, transposed, groups) ||
      (added.defined() && added.scalar_type() != at::kBFloat16)) {
    return at::compositeexplicitautograd::_convolution(
        x, w, bias, stride, padding, dilation, transposed, output_padding, groups, benchmark,
        deterministic, cudnn_enabled, allow_tf32);
  }
  return converted_convolution(
      x, w, added,
      {stride.vec(), padding.vec(), dilation.vec(), transposed, output_padding.vec(), groups});
}
std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gy, const Tensor& x, const Tensor& w, at::OptionalIntArrayRef bias_sizes,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> want) {
  if (!convolves(x, w, transposed, groups) || gy.scalar_type() != at::kBFloat16 ||
      gy.dim() != x.dim() || gy.size(0) != x.size(0)) {
    return at::compositeexplicitautograd::convolution_backward(
        gy, x, w, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, want);
  }
  return converted_convolution_backward(
      gy, x, w,
      {stride.vec(), padding.vec(), dilation.vec(), transposed, output_padding.vec(), groups},
      want);
}

bool attends(const Tensor& q, const Tensor& k, const Tensor& v) {
  return all_bf16(q, k) && v.scalar_type() == at::kBFloat16 && q.dim() == 4 && k.dim() == 4 &&
         v.dim() == 4 && q.numel() > 0;
}
std::tuple<Tensor, Tensor> flash(const Tensor& q, const Tensor& k, const Tensor& v, double dropout,
                                 bool causal, const std::optional<Tensor>& mask,
                                 std::optional<double> scale) {
  return attends(q, k, v) ? converted_attention(q, k, v, dropout, causal, mask, scale)
                          : at::native::_scaled_dot_product_flash_attention_cpu(
                                q, k, v, dropout, causal, mask, scale);
}
std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& gout, const Tensor& q,
                                                  const Tensor& k, const Tensor& v,
                                                  const Tensor& out, const Tensor& lse,
                                                  double dropout, bool causal,
                                                  const std::optional<Tensor>& mask,
                                                  std::optional<double> scale) {
  return attends(q, k, v)
             ? converted_attention_backward(gout, q, k, v, out, lse, dropout, causal, mask, scale)
             : at::native::_scaled_dot_product_flash_attention_cpu_backward(
                   gout, q, k, v, out, lse, dropout, causal, mask, scale);
}

// Our kernels, registered in place of LibTorch's for as long as the library lives.
std::unique_ptr<torch::Library> converting() {
  const QuietWarnings quiet;  // which a replaced kernel causes
  auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten",
                                                  c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("mm", &mm<2>);
  library->impl("mm.out", &mm_out<2>);
  library->impl("addmm", &addmm<2>);
  library->impl("addmm.out", &addmm_out<2>);
  library->impl("addmm_", &addmm_in_place<2>);
  library->impl("bmm", &mm<3>);
  library->impl("bmm.out", &mm_out<3>);
  library->impl("baddbmm", &addmm<3>);
  library->impl("baddbmm.out", &addmm_out<3>);
  library->impl("baddbmm_", &addmm_in_place<3>);
  library->impl("_convolution", &convolution);  // which every kind of convolution calls
  library->impl("convolution_backward", &convolution_backward);
  library->impl("_scaled_dot_product_flash_attention_for_cpu", &flash);
  library->impl("_scaled_dot_product_flash_attention_for_cpu_backward", &flash_backward);
  return library;
}

// Asks oneDNN, which LibTorch uses for bf16 products where the processor has instructions for them.
bool processor_has_bf16() {
  const auto op =
      c10::Dispatcher::singleton().findSchema({"mkldnn::_is_mkldnn_bf16_supported", ""});
  return op && op->typed<bool()>().call();
}

Bf16Products usual() {
  const char* const given = std::getenv("COMPACT_BF16_PRODUCTS");
  const std::string_view word = given ? given : "";
  COMPACT_CHECK(word.empty() || word == "native" || word == "converted",
                "COMPACT_BF16_PRODUCTS must be native or converted, is `", word, "`");
  if (!word.empty()) return word == "native" ? Bf16Products::kNative : Bf16Products::kConverted;
  return processor_has_bf16() ? Bf16Products::kNative : Bf16Products::kConverted;
}

std::atomic<Bf16Products> g_how = Bf16Products::kNative;

}  // namespace

void set_bf16_products(std::optional<Bf16Products> how) {
  // Never destroyed: at exit the dispatcher may already be gone.
  static auto* const mutex = new std::mutex;
  static auto* const library = new std::unique_ptr<torch::Library>;
  const Bf16Products now = how.value_or(usual());
  const std::lock_guard lock(*mutex);
  if (now == Bf16Products::kNative) {
    library->reset();
  } else if (!*library) {
    *library = converting();
  }
  g_how = now;
}

Bf16Products bf16_products() { return g_how; }

void choose_bf16_products() {
  static const bool chosen = [] {
    set_bf16_products();
    return true;
  }();
  (void)chosen;
}

}  // namespace compact
