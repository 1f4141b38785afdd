// SPDX-License-Identifier: Apache-2.0
// Matrix products and attention in bfloat16 on processors without instructions for it. There
// LibTorch computes them in plain loops, 10 to 100 times slower than in f32. Here tiles of the
// operands are converted to f32 in a buffer of bounded size, multiplied by LibTorch's f32 products,
// summed in f32 and rounded once.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace compact {

enum class Bf16Products {
  kNative,     // LibTorch's own, by oneDNN
  kConverted,  // by converted tiles
};

// The words for kConverted in reports.
inline constexpr const char* kConvertedProducts =
    "in tiles of f32, as this processor has no bf16 instructions";

// Sets how this process computes bf16 products and attention on the CPU, for every caller: mm,
// addmm, bmm, baddbmm and flash attention of LibTorch, forward and backward. nullopt: as the
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
