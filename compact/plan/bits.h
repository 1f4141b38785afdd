// SPDX-License-Identifier: Apache-2.0
// Bits for quantized tensors under a budget of bytes: the least gradient error, sum over tensors of
// sensitivity * error(bits) (GACT, arXiv 2206.11357, section 4), subject to the sum of bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace compact {

// A way to hold a tensor: bytes exact, scales included.
struct BitChoice {
  int bits = 0;
  int64_t bytes = 0;
  double error = 0;  // in units of the tensor's sensitivity
};

struct TensorBits {
  std::string name;
  double sensitivity = 0;
  std::vector<BitChoice> choices;
};

struct BitAllocation {
  std::vector<size_t> chosen;  // of each tensor's choices
  int64_t bytes = 0;
  double error = 0;
};

// Variance of stochastic rounding to uniform levels, in units of a sixth of the range squared:
// 1 / (2^bits - 1)^2; where one code is taken for 0, 1 / (2^bits - 2)^2.
double uniform_error(double bits, bool zero_code = false);

// The optimum (solve.h), of equal errors in the fewest bytes: no worse than any uniform number of
// bits that fits. Throws InputError with both figures where the fewest bytes are more than the
// budget.
BitAllocation allocate_exact(std::span<const TensorBits> tensors, int64_t budget);

}  // namespace compact
