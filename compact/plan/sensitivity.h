// SPDX-License-Identifier: Apache-2.0
// How much of the gradient's error each quantized tensor causes, measured on gradients of one batch,
// and the bits that follow from it (GACT, arXiv 2206.11357, section 4).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "compact/ops/policy.h"
#include "compact/ops/saved_tensors.h"
#include "compact/plan/bits.h"

namespace compact {

// The gradient of a batch, flat and f32, with saved tensors held as the policy says and rounded with
// the key. Must leave no trace: the same arguments give the same bits.
using GradientProbe = std::function<at::Tensor(const Policy& policy, uint64_t noise)>;

// E|g' - g|^2 of each tensor in units of uniform_error(bits): one more gradient for each tensor,
// with that tensor in 4 bits and the others in 8.
std::vector<double> sensitivity_by_tensor(const GradientProbe& probe,
                                          std::span<const std::string> names, uint64_t noise);
// The same from `runs` gradients, however many tensors there are: in each a random half of them has
// fewer bits, rounded with the same noise wherever a tensor is in the half. So the product of two
// runs' errors is the sum over the tensors in both, up to products of independent errors, and
// `runs` gradients give runs (runs + 1) / 2 such sums; the least squares fit with none below 0 tells
// the tensors apart. Holds `runs` gradients. Throws InputError on fewer than 2 runs.
std::vector<double> sensitivity_by_groups(const GradientProbe& probe,
                                          std::span<const std::string> names, int runs,
                                          uint64_t noise);

// Names of a report's quantized tensors that are held for themselves, in order.
std::vector<std::string> quantized_names(const SavedTensorReport& report);

struct BitPlan {
  Policy policy;  // `slot NAME = quantize:bits=N` for each tensor
  BitAllocation allocation;
  double uniform_error = 0;  // of all tensors in `bits`, predicted as allocation.error is
};
// Bits for the quantized tensors of `report` in no more bytes than all of them in `bits` take.
// `bits` may be a fraction (3): then bytes are between those of its neighbours.
BitPlan adaptive_bits(const SavedTensorReport& report, std::span<const double> sensitivity,
                      double bits);

}  // namespace compact
