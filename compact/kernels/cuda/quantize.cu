// SPDX-License-Identifier: Apache-2.0
// Quantization in groups. A warp takes some tiles of a row: several small groups or one large one.
// With b bytes a group, byte k of it holds the codes of its elements k, b + k, ...: the lane's four
// neighbours lie in one plane, their codes are a word of it, and the words of all planes that lie
// at one place are joined, across lanes where a plane is shorter than what they hold. What is left
// of a row after its whole groups is walked byte by byte.
#include "compact/kernels/quantize.h"

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

// What a lane holds of a unit. A step is what all lanes hold of one part of a tile.
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
__global__ void __launch_bounds__(kStaged ? kStagedThreads : kThreads, kStaged ? 5 : 3)
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

template <int kBits, Levels kLevels, class T>
__global__ void dequantize_units(Dequantize a, Walk w) {
  const QuantizeFormat& f = a.format;
  const Held h = held_of(f);
  for_warps(a.rows * w.units, [&](int64_t number) {
    const Unit unit = unit_of(f, a.n, w, number);
    const int64_t first = unit.row * f.groups(a.n) + unit.first, left = unit.whole * f.group;
    const uint8_t* codes = a.codes + unit.row * f.row_bytes(a.n) + unit.first * h.plane;
    T* to = static_cast<T*>(a.x) + unit.row * a.n + unit.first * f.group;
    for (int turn = 0; turn < h.turns() && left > 0; ++turn) {
      uint32_t words[kParts] = {};
      GroupScale scale[kParts] = {};
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        const Spot spot = spot_of(h, turn * kParts + p);
        if (spot.group >= unit.whole) continue;
        scale[p] = p > 0 && h.wide() ? scale[0]
                                     : read_scale(a.scales, f.scale, first + spot.group, w.aligned);
        if (p > 0 && h.joins()) {
          words[p] = words[0];
          continue;
        }
        const auto bytes =
            load_words<kPart>(codes + spot.group * h.plane + spot.at % h.plane, kPart, w.aligned);
#pragma unroll
        for (int j = 0; j < kPart; ++j) words[p] |= uint32_t{bytes.v[j]} << (8 * j);
      }
      for (int tile = turn; tile < h.tiles(); tile += h.turns()) {
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          const int step = tile * kParts + p;
          const uint32_t plane = words[p] >> (spot_of(h, step).at / h.plane * kBits);
          float x[kPart];
#pragma unroll
          for (int j = 0; j < kPart; ++j) {
            x[j] = quantize_value<kBits, kLevels>(plane >> (8 * j) & ((1u << kBits) - 1), scale[p]);
          }
          const int64_t at = step * kPartTile + lane() * kPart;
          store_pack(to + at, x, left - at, w.aligned);
        }
      }
    }
    if (unit.tail) {
      const int64_t last = (unit.row + 1) * f.groups(a.n) - 1;
      dequantize_tail<kBits, kLevels, T>(a, unit.row,
                                         read_scale(a.scales, f.scale, last, w.aligned));
    }
  });
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

}  // namespace

void quantize(const Quantize& a, const Launch& launch) {
  if (a.rows * a.n == 0) return;
  with_type(a.type, [&]<class T>() {
    const Walk w = walk_of(a.format, a.n, static_cast<const T*>(a.x), a.codes, a.scales);
    with_format(a.format, [&]<int kBits, Levels kLevels, Rounding kRounding>() {
      const auto run = [&]<bool kStaged>() {
        const int threads = kStaged ? kStagedThreads : kThreads, warps = threads / kWarp;
        const size_t bytes =
            kStaged ? static_cast<size_t>(a.format.group * warps) * sizeof(T) : size_t{0};
        start("quantize", launch, {blocks_for(a.rows * w.units, warps), threads, bytes},
              quantize_units<kBits, kLevels, kRounding, kStaged, T>, a, w);
      };
      a.format.group > kTile ? run.template operator()<true>() : run.template operator()<false>();
    });
  });
}

void dequantize(const Dequantize& a, const Launch& launch) {
  if (a.rows * a.n == 0) return;
  with_type(a.type, [&]<class T>() {
    const Walk w = walk_of(a.format, a.n, static_cast<const T*>(a.x), a.codes, a.scales);
    const unsigned grid = blocks_for(a.rows * w.units, kThreads / kWarp);
    with_levels(a.format, [&]<int kBits, Levels kLevels>() {
      start("dequantize", launch, {grid, kThreads}, dequantize_units<kBits, kLevels, T>, a, w);
    });
  });
}

}  // namespace compact::kernels::cuda
