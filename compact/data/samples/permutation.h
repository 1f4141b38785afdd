// SPDX-License-Identifier: Apache-2.0
// A keyed permutation of 0 .. n-1 in constant memory: a balanced Feistel network on the smallest
// power of four that is >= n (Luby and Rackoff, 1988), stepped until it lands below n again (cycle
// walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
#pragma once

#include <cstdint>

#include "compact/base/philox.h"

namespace compact {

class Permutation {
 public:
  // n from 1 to 2^62. Equal (n, key) give equal permutations on every machine.
  Permutation(uint64_t n, uint64_t key) : n_(n), key_(key) {
    while (n > uint64_t{1} << (2 * half_)) ++half_;
  }

  // Where `i` < n goes. On average fewer than four steps.
  uint64_t operator()(uint64_t i) const {
    do {
      i = step(i);
    } while (i >= n_);
    return i;
  }

 private:
  static constexpr int kRounds = 8;

  uint64_t step(uint64_t i) const {
    const uint64_t mask = (uint64_t{1} << half_) - 1;
    uint64_t left = i >> half_, right = i & mask;
    for (int round = 0; round < kRounds; ++round) {
      const Random4 r = philox(key_, right, static_cast<uint64_t>(round));
      const uint64_t next = left ^ (r.v[0] & mask);
      left = right;
      right = next;
    }
    return left << half_ | right;
  }

  uint64_t n_, key_;
  int half_ = 1;  // bits of each half, at most 31
};

}  // namespace compact
