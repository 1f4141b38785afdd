// SPDX-License-Identifier: Apache-2.0
// Quantization in groups. A warp takes some tiles of a row: several small groups or one large one.
// With b bytes a group, byte k of it holds the codes of its elements k, b + k, ...: a lane's four
// adjacent elements fall in one plane, so their codes form one 32-bit word of it. Words of
// different planes that share the same bytes are OR-ed, by shuffles when they are in different
// lanes. The rest of a row after its whole groups is walked byte by byte.
#include "compact/kernels/quantize.h"

#include <bit>

#include "compact/kernels/cuda/group_scale.cuh"
#include "compact/kernels/cuda/short_group.cuh"

namespace compact::kernels::cuda {
namespace {

// How a warp walks over the rows: in units of `tiles` tiles.
struct Walk {
  int64_t units;   // of a row
  int64_t groups;  // of a unit, but for a row's last one
  bool aligned;    // packs of values and words of codes may be accessed as a whole
};

// Whole groups of a unit that begins with group `first` of its row, and whether the row's short
// group follows them.
struct Unit {
  int64_t row, first, whole;
  bool tail;
};
__device__ inline Unit unit_of(const QuantizeFormat& f, int64_t n, const Walk& w, int64_t unit) {
  const int64_t row = unit / w.units, first = unit % w.units * w.groups;
  const int64_t left = n / f.group - first;
  return {row, first, left < w.groups ? left : w.groups, left < w.groups && n % f.group != 0};
}

// A lane's share of a unit. A step is one part of a tile, held by all lanes together.
struct Held {
  int lanes;   // that hold a group, or a step of it
  int steps;   // of a group; 1 where a step holds several
  int groups;  // of a step, at least 1
  int plane;   // bytes of a group, and elements of a plane
  int repeat;  // steps of a plane, at least 1: later ones hold further planes of the same bytes

  __device__ bool wide() const { return steps > 1; }  // a unit is one group
  __device__ int tiles() const { return wide() ? steps / kParts : 1; }
  // Tiles that lie this far apart hold codes of the same bytes.
  __device__ int turns() const { return repeat > 1 ? repeat / kParts : 1; }
  // Whether both parts of a tile do.
  __device__ bool joins() const { return wide() && repeat == 1; }
};
__device__ inline Held held_of(const QuantizeFormat& f) {
  const int group = static_cast<int>(f.group), plane = group * f.bits / 8;
  const bool wide = group > kPartTile;
  return {.lanes = wide ? kWarp : group / kPart,
          .steps = wide ? group / kPartTile : 1,
          .groups = wide ? 1 : kPartTile / group,
          .plane = plane,
          .repeat = plane > kPartTile ? plane / kPartTile : 1};
}
// Where the lane's elements of a step lie in their group, and which group of the unit that is.
struct Spot {
  int at;
  int64_t group;
};
__device__ inline Spot spot_of(const Held& h, int step) {
  return {step % h.steps * kPartTile + lane() % h.lanes * kPart,
          h.wide() ? 0 : step * h.groups + lane() / h.lanes};
}

// A lane stores what it holds of group lane() of the unit, which begins with group `first`: one
// access for all.
__device__ inline void store_scales(const Quantize& a, int64_t first,
                                    const GroupScale (&scale)[kParts], const Held& h, int64_t whole,
                                    bool aligned) {
  GroupScale mine = scale[0];
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const int source = lane() % h.groups * h.lanes;
    const float offset = __shfl_sync(kAllLanes, scale[p].offset, source);
    const float step = __shfl_sync(kAllLanes, scale[p].step, source);
    if (lane() / h.groups == p) mine = {offset, step};
  }
  if (lane() < whole) write_scale(a.scales, a.format.scale, first + lane(), mine, aligned);
}

constexpr int kStagedThreads = 128;  // of a block: its groups of 2,048 fit into 32 KiB

// kStaged: groups of more than a tile wait in shared memory, where a lane has its own words.
template <int kBits, Levels kLevels, Rounding kRounding, bool kStaged, class T>
__global__ void __launch_bounds__(kStaged ? kStagedThreads : kThreads, kStaged ? 5 : 2)
    quantize_units(Quantize a, Walk w) {
  using Pack = Words<T, kPart>;
  const QuantizeFormat& f = a.format;
  const Held h = held_of(f);
  Pack* staged = reinterpret_cast<Pack*>(shared_floats()) +
                 static_cast<int>(threadIdx.x / kWarp) * h.steps * kWarp + lane();
  for_warps(a.rows * w.units, [&](int64_t number) {
    const Unit unit = unit_of(f, a.n, w, number);
    const int64_t first = unit.row * f.groups(a.n) + unit.first;  // group
    const int64_t left = unit.whole * f.group;
    const T* from = static_cast<const T*>(a.x) + unit.row * a.n + unit.first * f.group;
    Pack held[kParts];
    for (int tile = 0; tile < (kStaged ? h.tiles() : 1); ++tile) {
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        const int64_t at = tile * kTile + part_at(p);
        held[p] = load_words<kPart>(from + at, left - at, w.aligned);
        if (kStaged) staged[(tile * kParts + p) * kWarp] = held[p];
      }
    }
    const auto get = [&](float(&x)[kPart], int step) {
      if constexpr (kStaged) {
        const Pack pack = staged[step * kWarp];
#pragma unroll
        for (int j = 0; j < kPart; ++j) x[j] = load(pack.v[j]);
      } else {
#pragma unroll
        for (int j = 0; j < kPart; ++j) x[j] = step == 0 ? load(held[0].v[j]) : load(held[1].v[j]);
      }
    };
    GroupScale scale[kParts];
    scale[0] = held_scale<kBits, kLevels, kRounding>(get, h.lanes, h.steps, f.scale);
    scale[1] = h.wide() ? scale[0]
                        : held_scale<kBits, kLevels, kRounding>(
                              [&](float(&x)[kPart], int) { get(x, 1); }, h.lanes, 1, f.scale);
    store_scales(a, first, scale, h, unit.whole, w.aligned);

    uint8_t* codes = a.codes + unit.row * f.row_bytes(a.n) + unit.first * h.plane;
    for (int turn = 0; turn < (kStaged ? h.turns() : 1); ++turn) {
      uint32_t words[kParts] = {};
      for (int tile = turn; tile < (kStaged ? h.tiles() : 1); tile += h.turns()) {
        uint32_t random[kParts][kPart] = {};
        if constexpr (kRounding == Rounding::kStochastic) {
          tile_bits(random, a.key, static_cast<uint64_t>((first * f.group + tile * kTile) / 8));
        }
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          const int step = tile * kParts + p;
          const float inverse = inverse_of(scale[p].step);
          float x[kPart];
          get(x, step);
          uint32_t word = 0;
#pragma unroll
          for (int j = 0; j < kPart; ++j) {
            word |= quantize_code<kBits, kLevels, kRounding>(x[j], scale[p].offset, inverse,
                                                             random[p][j])
                    << (8 * j);
          }
          words[p] |= word << (spot_of(h, step).at / h.plane * kBits);
        }
      }
      if (h.joins()) words[0] |= words[1];
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        if (p > 0 && h.joins()) break;
        uint32_t word = words[p];
        for (int apart = h.lanes / 2; apart * kPart >= h.plane; apart /= 2) {  // in other lanes
          word |= __shfl_xor_sync(kAllLanes, word, apart);
        }
        const Spot spot = spot_of(h, turn * kParts + p);
        if (spot.at >= h.plane || spot.group >= unit.whole) continue;
        Words<uint8_t, kPart> bytes;
#pragma unroll
        for (int j = 0; j < kPart; ++j) bytes.v[j] = static_cast<uint8_t>(word >> 8 * j);
        store_words(codes + spot.group * h.plane + spot.at, bytes, kPart, w.aligned);
      }
    }
    if (unit.tail) quantize_tail<kBits, kLevels, kRounding, T>(a, unit.row);
  });
}

constexpr int kTileThreads = 64, kMany = 4;  // groups that a warp takes at once

// The codes of a part with uniform levels, a byte each; random: two words, as tile_words gives
// them.
template <int kBits, Rounding kRounding>
__device__ inline uint32_t uniform_codes(const float (&x)[kPart], float offset, float inverse,
                                         const uint32_t (&random)[2]) {
  constexpr float kTop = (1 << kBits) - 1;
  uint32_t codes = 0u - 0x4b000000u;  // less the bits of 2^23, from where an f32 has no fraction
#pragma unroll
  for (int j = 0; j < kPart; ++j) {
    float up = 0.5f;
    if constexpr (kRounding == Rounding::kStochastic) {
      const uint32_t bits = __byte_perm(random[j / 2], 0x4300u, j % 2 ? 0x5432 : 0x5410);
      up = float_of(bits) - 128.0f;  // the 16 bits times 2^-16
    }
    // As quantize_code has it: never below 0, and kTop for a NaN.
    const float t = (x[j] - offset) * inverse + up;
    codes += bits_of(__fadd_rz(fminf(t, kTop), 0x1p23f)) << (8 * j);
  }
  return codes;
}

// The smaller or larger of two floats, or of the two halves of words, by their bits; a NaN where
// one is.
template <bool kLeast>
__device__ inline uint32_t extreme(float, uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (kLeast) {
    asm("min.NaN.f32 %0, %0, %1;" : "+r"(a) : "r"(b));
  } else {
    asm("max.NaN.f32 %0, %0, %1;" : "+r"(a) : "r"(b));
  }
  return a;
#else
  const float x = float_of(a), y = float_of(b);
  return bits_of(x != x || y != y ? not_a_number() : kLeast ? fminf(x, y) : fmaxf(x, y));
#endif
}
template <bool kLeast>
__device__ inline uint32_t extreme(BFloat16, uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (kLeast) {
    asm("min.NaN.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  } else {
    asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  }
  return a;
#else
  return extreme<kLeast>(0.0f, a << 16, b << 16) >> 16 |
         extreme<kLeast>(0.0f, a & 0xffff0000u, b & 0xffff0000u);
#endif
}

// The least of some values and the largest negated, two floats or two halves.
template <class T>
using Range = Raw<T, 2>;
template <class T>
__device__ inline Range<T> range_of(const Raw<T, kPart> (&packs)[kParts]) {
  constexpr int kWords = kPart / Raw<T, kPart>::kEach;
  uint32_t low = packs[0].v[0], high = low;
#pragma unroll
  for (int i = 1; i < kParts * kWords; ++i) {
    const uint32_t word = packs[i / kWords].v[i % kWords];
    low = extreme<true>(T{}, low, word);
    high = extreme<false>(T{}, high, word);
  }
  if constexpr (sizeof(T) == 4) {
    return {low, high ^ 0x80000000u};
  } else {
    high ^= 0x80008000u;
    return {extreme<true>(T{}, __byte_perm(low, high, 0x5410), __byte_perm(low, high, 0x7632))};
  }
}

// Groups of a tile with uniform levels and without gaps: a warp takes kMany of them at once, for
// each of which some lanes make the scale.
template <int kBits, Rounding kRounding, class T>
__global__ void __launch_bounds__(kTileThreads, blocks_held(10, 8))
    quantize_tiles(Quantize a, int64_t groups, RoundKeys keys) {
  using Pack = Raw<T, kPart>;
  constexpr int kGroupLanes = kWarp / kMany, kBytes = kTile / 8 * kBits;
  constexpr int kCodeLanes = kBits < 4 ? kBytes / kPart : kWarp;  // that store codes
  const Type type = a.format.scale;
  for_warps((groups + kMany - 1) / kMany, [&](int64_t unit) {
    // The last takes some of its neighbour's again, to the same codes.
    const int64_t first = unit * kMany < groups - kMany ? unit * kMany : groups - kMany;
    const T* from = static_cast<const T*>(a.x) + first * kTile;
    Pack held[kMany][kParts];
#pragma unroll
    for (int g = 0; g < kMany; ++g) {
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        held[g][p] = *reinterpret_cast<const Pack*>(from + g * kTile + part_at(p));
      }
    }
    Range<T> range[kMany];
#pragma unroll
    for (int g = 0; g < kMany; ++g) range[g] = range_of<T>(held[g]);
      // Half of the lanes go on with half of the groups, until each has one.
#pragma unroll
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
      const int half = kMany * apart / kWarp;
      const bool upper = lane() & apart;
#pragma unroll
      for (int g = 0; g < (half > 0 ? half : 1); ++g) {
#pragma unroll
        for (size_t i = 0; i < sizeof(T) / 2; ++i) {
          const uint32_t one = range[g].v[i], other = range[g + half].v[i];
          const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? one : other, apart);
          range[g].v[i] = extreme<true>(T{}, upper ? other : one, got);
        }
      }
    }
    float ends[2];
    unpack(ends, range[0]);
    const GroupScale scale = uniform_scale<kBits>(ends[0], -ends[1], type);
    const float inverse = inverse_of(scale.step);
    if (lane() % kGroupLanes == 0) {
      write_scale(a.scales, type, first + lane() / kGroupLanes, scale, true);
    }
    uint8_t* codes = a.codes + first * kBytes + lane() * kPart;
#pragma unroll
    for (int g = 0; g < kMany; ++g) {
      const float offset = __shfl_sync(kAllLanes, scale.offset, g * kGroupLanes);
      const float by = __shfl_sync(kAllLanes, inverse, g * kGroupLanes);
      uint32_t random[kParts][2] = {}, words[kParts];
      if constexpr (kRounding == Rounding::kStochastic) {
        tile_words(random, keys, static_cast<uint64_t>(first + g) * (kTile / 8));
      }
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        float x[kPart];
        unpack(x, held[g][p]);
        words[p] = uniform_codes<kBits, kRounding>(x, offset, by, random[p]);
      }
      auto* to = reinterpret_cast<uint32_t*>(codes + g * kBytes);
      if constexpr (kBits == 8) {
        to[0] = words[0], to[kWarp] = words[1];
      } else {
        uint32_t word = words[0] | words[1] << 4;  // half of the planes lie in each part
        word <<= lane() / kCodeLanes * kBits;
#pragma unroll
        for (int apart = kWarp / 2; apart >= kCodeLanes; apart /= 2) {
          word |= __shfl_xor_sync(kAllLanes, word, apart);
        }
        if (lane() < kCodeLanes) *to = word;
      }
    }
  });
  if (a.n % kTile != 0 && blockIdx.x == 0 && threadIdx.x < kWarp) {
    quantize_tail<kBits, Levels::kUniform, kRounding, T>(a, 0);
  }
}

// A thread takes a word of kPack<T> bytes of codes and writes as many neighbours of each plane; two
// share a word and its planes where a plane has no more bytes, lest they write halves of sectors.
struct Planes {
  int64_t threads;
  int bytes, shift, share;  // of a plane; 2^shift bytes; 2^share threads a word
};
template <int kBits, Levels kLevels, class T>
__global__ void __launch_bounds__(kThreads, blocks_held(0, 4))
    dequantize_words(Dequantize a, Planes planes) {
  constexpr int V = kPack<T>, kPlanes = 8 / kBits;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t t = int64_t{blockIdx.x} * kThreads + threadIdx.x; t < planes.threads; t += stride) {
    const int64_t byte = (t >> planes.share) * V, group = byte >> planes.shift;
    const auto words = *reinterpret_cast<const Words<uint32_t, V / 4>*>(a.codes + byte);
    const GroupScale scale = read_scale(a.scales, a.format.scale, group, true);
    int plane = static_cast<int>(t) & ((1 << planes.share) - 1);
#pragma unroll
    for (int i = 0; i < kPlanes; ++i, plane += 1 << planes.share) {
      if (plane >= kPlanes) continue;
      float x[V];
#pragma unroll
      for (int w = 0; w < V / 4; ++w) {
        const uint32_t codes = words.v[w] >> plane * kBits & ((1u << kBits) - 1) * 0x01010101u;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          x[4 * w + j] = quantize_value<kBits, kLevels>(codes >> 8 * j & 0xffu, scale);
        }
      }
      const int64_t at = byte + (group * (kPlanes - 1) + plane) * planes.bytes;
      store_pack(static_cast<T*>(a.x) + at, x, V, true);
    }
  }
  if (a.n % a.format.group != 0 && blockIdx.x == 0 && threadIdx.x < kWarp) {
    dequantize_group<kBits, kLevels, T>(a, a.format.groups(a.n) - 1);
  }
}

// Any rows: a warp takes a group, lanes its bytes.
template <int kBits, Levels kLevels, class T>
__global__ void dequantize_groups(Dequantize a) {
  for_warps(a.rows * a.format.groups(a.n),
            [&](int64_t group) { dequantize_group<kBits, kLevels, T>(a, group); });
}

template <class T>
Walk walk_of(const QuantizeFormat& f, int64_t n, const T* x, const uint8_t* codes,
             const void* scales) {
  const int64_t groups = f.group < kTile ? kTile / f.group : 1;
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  return {.units = (f.groups(n) + groups - 1) / groups,
          .groups = groups,
          .aligned = rows_aligned(x, n) && address(codes) % kPart == 0 &&
                     f.row_bytes(n) % kPart == 0 && address(scales) % 8 == 0};
}

// Whether groups follow one another without gaps, rows or not, and words of all may be accessed as
// a whole.
template <class A>
bool gapless(const A& a) {
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  return (a.rows == 1 || a.n % a.format.group == 0) && address(a.x) % 16 == 0 &&
         address(a.codes) % 8 == 0 && address(a.scales) % 8 == 0;
}

}  // namespace

void quantize(const Quantize& a, const Launch& launch) {
  if (a.rows * a.n == 0) return;
  const QuantizeFormat& f = a.format;
  const int64_t groups = a.rows * (a.n / kTile);
  with_type(a.type, [&]<class T>() {
    const Walk w = walk_of(f, a.n, static_cast<const T*>(a.x), a.codes, a.scales);
    with_format(f, [&]<int kBits, Levels kLevels, Rounding kRounding>() {
      if constexpr (kLevels == Levels::kUniform) {
        if (f.group == kTile && gapless(a) && groups >= kMany) {
          const unsigned blocks = blocks_for(groups, kMany * kTileThreads / kWarp);
          return start("quantize", launch, {blocks, kTileThreads},
                       quantize_tiles<kBits, kRounding, T>, a, groups, round_keys(a.key));
        }
      }
      const auto run = [&]<bool kStaged>() {
        const int threads = kStaged ? kStagedThreads : kThreads, warps = threads / kWarp;
        const size_t bytes = kStaged ? static_cast<size_t>(f.group * warps) * sizeof(T) : size_t{0};
        start("quantize", launch, {blocks_for(a.rows * w.units, warps), threads, bytes},
              quantize_units<kBits, kLevels, kRounding, kStaged, T>, a, w);
      };
      f.group > kTile ? run.template operator()<true>() : run.template operator()<false>();
    });
  });
}

void dequantize(const Dequantize& a, const Launch& launch) {
  if (a.rows * a.n == 0) return;
  const QuantizeFormat& f = a.format;
  with_type(a.type, [&]<class T>() {
    const int bytes = static_cast<int>(f.group) * f.bits / 8, share = bytes < 2 * kPack<T> ? 1 : 0;
    with_levels(f, [&]<int kBits, Levels kLevels>() {
      if (gapless(a) && bytes >= kPack<T>) {
        const Planes planes = {a.rows * (a.n / f.group) * (bytes / kPack<T>) << share, bytes,
                               std::countr_zero(static_cast<unsigned>(bytes)), share};
        start("dequantize", launch, {blocks_for(planes.threads + 1, kThreads), kThreads},
              dequantize_words<kBits, kLevels, T>, a, planes);
      } else {
        const unsigned blocks = blocks_for(a.rows * f.groups(a.n), kThreads / kWarp);
        start("dequantize", launch, {blocks, kThreads}, dequantize_groups<kBits, kLevels, T>, a);
      }
    });
  });
}

}  // namespace compact::kernels::cuda
