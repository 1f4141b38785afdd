// SPDX-License-Identifier: Apache-2.0
// The arguments of the kernels of codecs: projections, random matrices, quantizers, bits.
// kernels.h has the rules.
#pragma once

#include "compact/base/philox.h"
#include "compact/kernels/launch.h"

namespace compact::kernels {

// The subsampled randomized Hadamard transform for any n (design of P: [n, r]):
//   Q = orthogonal [n, n]: with k the largest power of two <= n, flip signs[0..n), Hadamard /
//   sqrt(k) on the first k coordinates; if k < n: flip signs[n..n+k) on the last k coordinates,
//   Hadamard / sqrt(k) on the last k. P^T = sqrt(n / r) * Q[index, :], so that E[P P^T] = I and P^T
//   P = (n / r) I.
struct SrhtPlan {
  const uint32_t*
      signs;             // bit i of word i/32 set: coordinate negated; n bits, then k bits if k < n
  const int32_t* index;  // [r], distinct, ascending, in [0, n)
  int64_t n, r;
};
struct Srht {  // z = x P
  SrhtPlan plan;
  const void* x;  // [rows, n] type
  void* z;        // [rows, r] type
  int64_t rows, x_stride;
  Type type;
};
struct SrhtTranspose {  // x = z P^T, in f32
  SrhtPlan plan;
  const void* z;  // [rows, r] type
  float* x;       // [rows, n]
  int64_t rows;
  Type type;
};

// Random matrices, element i from counter i/4 (one Philox call gives four elements) of `key`:
//   kNormal: standard normal by the inverse distribution function, made of exact operations only
//   (no libm), so that every backend gives the same bits; kRademacher: +-1; kSparse: +-sqrt(3) with
//   probability 1/6 each, else 0 (Achlioptas 2003); kUniform: between these two. Element i is
//   sample(distribution, word i%4 of philox(key, i/4)) of normal.h, times `scale` in f32, rounded
//   to type.
enum class Distribution : uint8_t { kNormal, kRademacher, kSparse, kUniform };
struct Draw {
  void* out;  // [count] type
  int64_t count;
  uint64_t key;
  float scale;
  Distribution distribution;
  Type type;
};

// Rows in 8-bit floats that share a power of two over kFloat8Block neighbours of a row (float8.h
// says what a code means). With b the block's number, rows after rows, its element j takes half
// j%2 (0: low) of word (j%8)/2 of philox(key, 32 b + j/8). A block with a NaN reads back as NaN;
// an infinity stays one, alone.
inline constexpr int64_t kFloat8Block = 256;
struct Float8Pack {
  const float* x;  // [rows, n]
  uint8_t* codes;  // [rows, n]
  float* scales;   // [rows, ceil(n / kFloat8Block)]
  int64_t rows, n;
  bool is_signed;  // else x >= 0, and values above 0 stay so
  uint64_t key;
  const float* guard = nullptr;  // held_back, of updates.h
};
struct Float8Unpack {
  const uint8_t* codes;  // [rows, n]
  const float* scales;   // [rows, ceil(n / kFloat8Block)]
  float* x;              // [rows, n]
  int64_t rows, n;
  bool is_signed;
};

// Rows in groups of `group` neighbours, each with an offset and a step, a value as a code of `bits`
// bits: GACT's quantizer (arXiv 2206.11357) and two more. Uniform levels span the group's range.
// Lloyd's levels are those of least error for a normal (quantize.h): rounded to nearest they sit
// on the group's mean and standard deviation, rounded stochastically they are stretched over its
// range. Positive levels are for results of a ReLU: 0 has a code of its own, which values above 0
// never get (those below 0 read back as 0), the others span the range from 0 up. Stochastic
// rounding is unbiased but for 2^-16 of a step (positive levels: 2^-10). A group with a NaN, an
// infinity or a range beyond f32 reads back as NaN.
//   Groups do not cross rows. A group of c values has b = ceil(c bits / 8) bytes: byte k holds the
// codes of its elements k, b + k, 2b + k, ..., the first in the low bits. Groups lie one after the
// other. Element j of group g (rows after rows) takes half j%2 (0: low) of word (j%8)/2 of
// philox(key, g group/8 + j/8). Sums run over lanes: element j belongs to lane j%16, lanes are
// added by halves.
enum class Rounding : uint8_t { kNearest, kStochastic };
enum class Levels : uint8_t { kUniform, kLloyd, kPositive };
struct QuantizeFormat {
  int bits;       // 1, 2, 4, 8; Lloyd's levels: at most 4, positive ones: at least 2
  int64_t group;  // 32, 64, ..., 2048
  Rounding rounding;
  Levels levels;
  Type scale;  // of offsets and steps

  COMPACT_HOST_DEVICE constexpr int64_t groups(int64_t n) const { return (n + group - 1) / group; }
  COMPACT_HOST_DEVICE constexpr int64_t row_bytes(int64_t n) const {
    return n / group * (group * bits / 8) + (n % group * bits + 7) / 8;
  }
};
struct Quantize {
  QuantizeFormat format;
  const void* x;   // [rows, n] type
  uint8_t* codes;  // [rows, row_bytes(n)]
  void* scales;    // [rows, groups(n), 2] scale: offset, step
  int64_t rows, n;
  uint64_t key;
  Type type;
};
struct Dequantize {
  QuantizeFormat format;
  const uint8_t* codes;  // [rows, row_bytes(n)]
  const void* scales;    // [rows, groups(n), 2] scale
  void* x;               // [rows, n] type
  int64_t rows, n;
  Type type;
};

// Matrices in NF4, laid out as bitsandbytes does: rows one after the other, of two neighbours in a
// byte the first in the high bits; kNf4Block neighbours, across rows, share a scale. Nested scales
// are codes themselves, which kNf4Nested neighbours share a scale for. An element is levels[code] *
// s, where s is scales[block], or nested map[scale_codes[block]] * scales[block / kNf4Nested] +
// *offset, each operation rounded.
inline constexpr int64_t kNf4Block = 64, kNf4Nested = 256;
struct Nf4Decode {
  const uint8_t* codes;        // [ceil(rows n / 2)]
  const float* scales;         // one a block; nested: one for kNf4Nested blocks
  const uint8_t* scale_codes;  // one a block; null: scales are not nested
  const float* offset;         // [1]
  const float* levels;         // [16]
  const float* map;            // [256]
  void* x;                     // [rows, n] type, rows x_stride apart
  int64_t rows, n, x_stride;
  Type type;
};

// One bit an element, by its bits as an unsigned number u: set where low <= u < low + span. Bit i
// is bit i%8 of byte i/8; bits beyond the end are 0. Where an element is neither in the range nor
// equal to `other`, *strays is set to 1 (never cleared to 0; null: not reported).
struct BitPack {
  const void* x;    // [count] of `element` bytes
  uint8_t* bits;    // [ceil(count / 8)]
  int32_t* strays;  // on the device, or null
  int64_t count;
  int element;  // 1, 2, 4
  uint32_t low, span, other;
};
// x[i] = bit i ? one : zero.
struct BitUnpack {
  const uint8_t* bits;  // [ceil(count / 8)]
  void* x;              // [count] of `element` bytes
  int64_t count;
  int element;  // 1, 2, 4
  uint32_t zero, one;
};

}  // namespace compact::kernels
