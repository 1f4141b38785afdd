// SPDX-License-Identifier: Apache-2.0
// How much of the gradient's error each quantized tensor causes, measured on gradients of one
// batch, and the bits that follow from it (GACT, arXiv 2206.11357, section 4).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "compact/networks/network.h"
#include "compact/ops/policy/policy.h"
#include "compact/plan/bits.h"

namespace compact {

// The gradient of a batch, flat and f32, with saved tensors held as the policy says and rounded
// with the key. Must leave no trace: the same arguments give the same bits.
using GradientProbe = std::function<at::Tensor(const Policy& policy, uint64_t noise)>;

// A tensor whose bits are open.
struct AdaptiveTensor {
  std::string name;
  Treatment treatment;  // begins with a codec that has a choice of bits
  int64_t elements = 0;
  at::ScalarType type = at::kFloat;
  double average = 4;  // bits whose bytes it brings to the budget
};
// The tensors with `adapt`.
std::vector<AdaptiveTensor> adaptive_tensors(std::span<const CodecTensor> tensors);

// E|g' - g|^2 of each tensor in units of uniform_error(bits), from `runs` gradients beside that of
// all in 8 bits, however many tensors there are: in each a random half of them has 4 bits, rounded
// with the same noise wherever a tensor is in the half. So the product of two runs' errors is the
// sum over the tensors in both, up to products of independent errors, and `runs` gradients give
// runs (runs + 1) / 2 such sums; the least squares fit with none below 0 tells the tensors apart.
// Holds `runs` + 1 gradients. Throws InputError on fewer than 2 runs.
std::vector<double> sensitivity_by_groups(const GradientProbe& probe,
                                          std::span<const AdaptiveTensor> tensors, int runs,
                                          uint64_t noise);

struct BitPlan {
  // `slot NAME = quantize:bits=N,...` for each tensor: lines above the policy that named them.
  Policy policy;
  std::vector<int> bits;  // of each
  BitAllocation allocation;
  double uniform_error = 0;  // of all in their average bits, predicted as allocation.error is
};
// Bits in no more bytes than all tensors in their average bits take; an average between those that
// there are (3) takes the bytes between.
BitPlan adaptive_bits(std::span<const AdaptiveTensor> tensors, std::span<const double> sensitivity);

}  // namespace compact
