// SPDX-License-Identifier: Apache-2.0
// Matrix products, convolutions and attention in bfloat16 on processors without instructions for
// it. There LibTorch computes them in plain loops, 2 to 100 times slower than in f32. Here tiles
// of the operands are converted to f32 in a buffer of bounded size, multiplied by LibTorch's f32
// products, summed in f32 and rounded once.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace compact {

enum class Bf16Products {
  kNative,     // LibTorch's own, by oneDNN
  kConverted,  // by converted tiles
};

// The words for kConverted in reports.
inline constexpr const char* kConvertedProducts =
    "in tiles of f32, as this processor has no bf16 instructions";

// Sets how this process computes bf16 products, convolutions and attention on the CPU, for every
// caller: mm, addmm, bmm, baddbmm, convolutions of all kinds and flash attention of LibTorch,
// forward and backward. nullopt: as the
// environment variable COMPACT_BF16_PRODUCTS says (`native` or `converted`), else converted where
// oneDNN says that it has no bf16 for this processor. To be called while no product runs. Throws
// InputError where the variable says something else.
void set_bf16_products(std::optional<Bf16Products> how = {});
// The setting in force; kNative before the first call.
Bf16Products bf16_products();
// Calls set_bf16_products() once; later calls do nothing.
void choose_bf16_products();

// out [m, n] = beta self + alpha a [m, k] b [k, n], or the same of batches of as many matrices, all
// bf16; self is as large as out, or not defined. On the meta device the buffers are made and freed
// again, so that plans count them.
void converted_product(const at::Tensor& out, const at::Tensor& self, const at::Tensor& a,
                       const at::Tensor& b, double beta = 1, double alpha = 1);

// How a convolution moves over a map. One value may stand for all dimensions.
struct Convolution {
  std::vector<int64_t> stride, padding, dilation;
  bool transposed = false;
  std::vector<int64_t> output_padding;
  int64_t groups = 1;
  auto operator<=>(const Convolution&) const = default;
};

// LibTorch's convolution of bf16 tensors, x [samples, channels, ...] by w, with a bias [out] or an
// undefined one, some samples at a time: tensors of at most 2^20 elements are converted, unless one
// sample has more, and w once. The result is laid out as that in f32. As products, both run on the
// meta device, too. The backward pass gives the gradients of x, w and the bias that are wanted;
// sums over samples are in f32.
at::Tensor converted_convolution(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                                 const Convolution& how);
std::tuple<at::Tensor, at::Tensor, at::Tensor> converted_convolution_backward(
    const at::Tensor& gy, const at::Tensor& x, const at::Tensor& w, const Convolution& how,
    std::array<bool, 3> want);

// LibTorch's _scaled_dot_product_flash_attention_for_cpu, and its backward pass, of bf16 tensors
// [batch, heads, tokens, dim], some heads at a time: the output and the logsumexp in f32
// [batch, heads, tokens]; gradients of queries, keys and values.
std::tuple<at::Tensor, at::Tensor> converted_attention(const at::Tensor& q, const at::Tensor& k,
                                                       const at::Tensor& v, double dropout,
                                                       bool causal,
                                                       const std::optional<at::Tensor>& mask,
                                                       std::optional<double> scale);
std::tuple<at::Tensor, at::Tensor, at::Tensor> converted_attention_backward(
    const at::Tensor& gout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& lse, double dropout, bool causal,
    const std::optional<at::Tensor>& mask, std::optional<double> scale);

}  // namespace compact
