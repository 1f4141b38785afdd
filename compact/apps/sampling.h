// SPDX-License-Identifier: Apache-2.0
// Choosing a next token from logits.
#pragma once

#include <cstdint>
#include <span>

namespace compact {

struct SamplingOptions {
  double temperature = 0.8;  // logits are divided by it; 0: the largest one wins
  int64_t top_k = 0;         // only the k largest; 0: all
  double top_p = 1.0;        // only the fewest largest whose probabilities reach p (Holtzman 2020)
};

// Throws InputError, naming the flag, on a value out of range.
void check_sampling(const SamplingOptions& options);

// The index chosen by `uniform` in [0, 1). Equal logits rank by index. Throws InputError on no
// logits and on NaN.
int64_t sample(std::span<const float> logits, const SamplingOptions& options, double uniform);

}  // namespace compact
