// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy
// as 1, 2, 3", 2011). A number depends on its key and counter only, never on the order of calls,
// the number of threads or the device.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define COMPACT_HOST_DEVICE __host__ __device__
#else
#define COMPACT_HOST_DEVICE
#endif

namespace compact {

struct Random4 {
  uint32_t v[4];
};

struct Product {
  uint32_t low, high;
};
COMPACT_HOST_DEVICE inline Product product(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  return {a * b, __umulhi(a, b)};  // one instruction, where 64-bit numbers make two
#else
  const uint64_t p = uint64_t{a} * b;
  return {static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32)};
#endif
}

COMPACT_HOST_DEVICE inline Random4 philox_round(const Random4& c, uint32_t k0, uint32_t k1) {
  const Product p0 = product(0xD2511F53u, c.v[0]), p1 = product(0xCD9E8D57u, c.v[2]);
  return {{p1.high ^ c.v[1] ^ k0, p1.low, p0.high ^ c.v[3] ^ k1, p0.low}};
}

// Four independent 32-bit words for (key, counter, stream).
COMPACT_HOST_DEVICE inline Random4 philox(uint64_t key, uint64_t counter, uint64_t stream = 0) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  Random4 c = {{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)}};
  for (int round = 0; round < 10; ++round) {
    c = philox_round(c, k0, k1);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// A new key from a key and a label, so that (seed, layer, slot, step) become one key:
// derive(derive(seed, layer), slot).
COMPACT_HOST_DEVICE inline uint64_t derive(uint64_t key, uint64_t label) {
  const Random4 r = philox(key, label, 0x636f6d70616374ull);  // a stream of its own
  return (uint64_t{r.v[1]} << 32) | r.v[0];
}

// FNV-1a, for labels that are names. Not for hostile input.
inline uint64_t label_of(const char* text, uint64_t length) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (uint64_t i = 0; i < length; ++i)
    h = (h ^ static_cast<unsigned char>(text[i])) * 0x100000001b3ull;
  return h;
}

}  // namespace compact
