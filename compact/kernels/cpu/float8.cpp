// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/float8.h"

#include <algorithm>

#include "compact/kernels/cpu/cpu.h"
#include "compact/kernels/cpu/lanes8.h"

namespace compact::kernels::cpu {
namespace {

static_assert(kFloat8Block == kPhiloxHalves);

// float8_code() on all lanes.
template <bool kSigned>
COMPACT_INLINE UVec codes_of(Vec x, float inverse, UVec random) {
  constexpr Float8Format kFormat = float8_format(kSigned);
  const UVec bits = (UVec)x;
  const Vec y = (Vec)(bits & 0x7fffffffu) * inverse;
  const UVec y_bits = (UVec)y;
  const IVec is_small = y_bits < (kFormat.shift() + 1) << 23;
  const Vec fraction = convert<Vec>((IVec)random) * 0x1p-16f;
  const Vec counted = select(is_small, y * kFormat.steps() + fraction, Vec{});
  const UVec small = (UVec)convert<IVec>(counted);
  const UVec normal = ((y_bits + (random << 4)) >> 20) - (kFormat.shift() << 3);
  const UVec most = select(y < 4.0f, splat(kFormat.most() - 1), splat(kFormat.most()));
  const UVec large = select(y < 0.875f, normal, most);
  const UVec code = select(is_small, small, large);
  if constexpr (kSigned) return code | (bits >> 31 << 7);
  return select((code == 0u) & (y > 0.0f), splat(1u), code);
}

template <bool kSigned>
void pack_block(const Float8Pack& a, int64_t block, int64_t at, int64_t count) {
  const float* x = a.x + at;
  UVec most{};
  for_lanes(count, [&](int64_t i, auto n) {
    const UVec bits = (UVec)load(x + i, n) & 0x7fffffffu;
    const UVec size = select(bits == 0x7f800000u, splat(1u), bits);  // float8_size()
    most = select(size > most, size, most);
  });
  a.scales[block] =
      float8_scale(across(most, [](uint32_t a, uint32_t b) { return std::max(a, b); }));
  const float inverse = float8_inverse(a.scales[block]);
  uint16_t random[kPhiloxHalves];
  philox_halves(a.key, static_cast<uint64_t>(block) * kPhiloxCounters, random);
  for_lanes(count, [&](int64_t i, auto n) {
    const Vec v = load(x + i, n);
    store_bytes(a.codes + at + i, codes_of<kSigned>(v, inverse, load_halves(random + i)), n);
  });
}

// float8_value() on all lanes, without the block's scale.
template <bool kSigned>
COMPACT_INLINE Vec values_of(UVec code) {
  constexpr Float8Format kFormat = float8_format(kSigned);
  const UVec size = kSigned ? code & 0x7fu : code;
  const Vec small = convert<Vec>((IVec)size) * (1 / kFormat.steps());
  const UVec normal = (size << 20) + (kFormat.shift() << 23);
  const UVec large = select(size == kFormat.most(), splat(0x7f800000u), normal);
  const UVec y = select(size < 8u, (UVec)small, large);
  return (Vec)(kSigned ? y | (code >> 7 << 31) : y);
}

template <bool kSigned>
void unpack_block(const Float8Unpack& a, int64_t block, int64_t at, int64_t count) {
  const float scale = a.scales[block];
  for_lanes(count, [&](int64_t i, auto n) {
    store(a.x + at + i, values_of<kSigned>(load_bytes(a.codes + at + i, n)) * scale, n);
  });
}

// Calls block(number, first element, elements) for every block.
template <class Block>
void for_blocks_of(int64_t rows, int64_t n, const Launch& launch, Block block) {
  const int64_t blocks = (n + kFloat8Block - 1) / kFloat8Block;
  launch.parallel_for(rows * blocks, 64, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t column = b % blocks * kFloat8Block;
      block(b, b / blocks * n + column, std::min(kFloat8Block, n - column));
    }
  });
}

}  // namespace

void float8_pack(const Float8Pack& a, const Launch& launch) {
  if (held_back(a.guard)) return;
  for_blocks_of(a.rows, a.n, launch, [&](int64_t b, int64_t at, int64_t count) {
    (a.is_signed ? pack_block<true> : pack_block<false>)(a, b, at, count);
  });
}

void float8_unpack(const Float8Unpack& a, const Launch& launch) {
  for_blocks_of(a.rows, a.n, launch, [&](int64_t b, int64_t at, int64_t count) {
    (a.is_signed ? unpack_block<true> : unpack_block<false>)(a, b, at, count);
  });
}

}  // namespace compact::kernels::cpu
