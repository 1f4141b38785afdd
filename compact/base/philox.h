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

struct PlainProduct {
  COMPACT_HOST_DEVICE static uint64_t of(uint32_t a, uint32_t b) { return uint64_t{a} * b; }
};

// Four independent 32-bit words for (key, counter, stream).
template <class Product = PlainProduct>
COMPACT_HOST_DEVICE inline Random4 philox(uint64_t key, uint64_t counter, uint64_t stream = 0) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = static_cast<uint32_t>(stream), c3 = static_cast<uint32_t>(stream >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = Product::of(0xD2511F53u, c0), p1 = Product::of(0xCD9E8D57u, c2);
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
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
