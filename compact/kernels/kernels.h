// SPDX-License-Identifier: Apache-2.0
// The contract between operations and hardware: one Backend per folder of kernels/, every kernel
// required. reference/ is the definition of correct; the others are tested against it. No torch
// here: plain pointers, shapes, and a Launch that says where to run.
//
// Rules for every kernel
//  - Pointers are aligned to their element only. A count of zero is legal and does nothing.
//  - Tensors are dense and row-major unless a stride is named. Strides are in elements.
//  - Aliasing is allowed only where a comment says so.
//  - Arithmetic is f32 inside; a bf16 result is rounded once, to nearest even, unless a comment
//    says "stochastic". NaN and infinities propagate.
//  - Results do not depend on the number of threads, nor on alignment.
//  - Caller checks shapes; a kernel asserts only.
#pragma once

#include <cstdint>
#include <span>

#include "compact/base/function_ref.h"
#include "compact/base/philox.h"

namespace compact::kernels {

enum class Type : uint8_t { kFloat32, kBFloat16 };
enum class Device : uint8_t { kCpu, kCuda, kMeta };

// How a kernel runs: threads are the caller's (CPU), the stream is the caller's (CUDA).
struct Launch {
  // Calls body(begin, end) on disjoint ranges that cover [0, n); a range is at least `grain` long
  // unless it is the last one.
  using Body = FunctionRef<void(int64_t begin, int64_t end)>;
  void (*parallel_for)(int64_t n, int64_t grain, Body body) = nullptr;
  void* stream = nullptr;  // a cudaStream_t
};

// Runs everything on the calling thread.
Launch serial();

// A kernel every backend must have: a Backend that leaves one out does not compile.
template <class F>
class Required;
template <class... Args>
class Required<void(Args...)> {
 public:
  Required(void (*f)(Args...)) : f_(f) {}  // NOLINT: implicit on purpose
  void operator()(Args... args) const { f_(args...); }

 private:
  void (*f_)(Args...);
};

// y = x * rstd * weight per row, rstd = 1 / sqrt(mean(x^2) + eps).
struct RmsNorm {
  const void* x;       // [rows, n] type
  const void* weight;  // [n] weight_type
  void* y;             // [rows, n] type
  float* rstd;         // [rows]
  int64_t rows, n;
  float eps;
  Type type, weight_type;
};

// Gradients of RmsNorm. The weight's gradient is summed over kRmsNormParts fixed ranges of rows
// (range p is rows [p*rows/parts, (p+1)*rows/parts)), then over the parts in order.
inline constexpr int64_t kRmsNormParts = 32;
struct RmsNormBackward {
  const void* gy;        // [rows, n] type
  const void* x;         // [rows, n] type
  const void* weight;    // [n] weight_type
  const float* rstd;     // [rows]
  const void* residual;  // [rows, n] type or null: added to gx in f32 before rounding
  void* gx;              // [rows, n] type; may alias gy or residual
  void* gweight;         // [n] weight_type, overwritten; null: not wanted (parts is unused then)
  float* parts;          // [kRmsNormParts, n] scratch
  int64_t rows, n;
  Type type, weight_type;
};

// Rotary position embedding in place, rotate-half convention: for i < dim/2,
// (a, b) = (x[i], x[i + dim/2]) -> (a cos - b sin, b cos + a sin); inverse: sin -> -sin.
// Token t is at position t % length of the tables.
struct Rope {
  void* x;           // [tokens, >= heads*dim] type; head h of a token starts at h*dim
  const float* cos;  // [length, dim/2]
  const float* sin;  // [length, dim/2]
  int64_t tokens, length, heads, dim, row_stride;
  bool inverse;
  Type type;
};

// gate = gate_up[:, :m], up = gate_up[:, m:]; silu = gate * sigmoid(gate), rounded to type;
// product = silu * up.
struct SwiGlu {
  const void* gate_up;  // [rows, 2m] type
  void* silu;           // [rows, m] type, or null
  void* product;        // [rows, m] type, or null
  int64_t rows, m;
  Type type;
};

// With s = sigmoid(gate): g_gate = (gproduct * up) * (s + gate*s*(1-s)), g_up = gproduct * silu,
// where silu is read, or made anew (rounded to type, so that both ways agree bit for bit).
struct SwiGluBackward {
  const void* gproduct;  // [rows, m] type
  const void* gate_up;   // [rows, 2m] type
  const void* silu;      // [rows, m] type, or null
  void* ggate_up;        // [rows, 2m] type; may alias gate_up
  int64_t rows, m;
  Type type;
};

// Per row: lse = log sum exp(logits), loss = lse - logits[target]; a row whose target is
// kIgnoreIndex has loss 0. log_probs = logits - lse. A row whose target is no class has loss and
// gradient NaN; nothing outside of the row is read.
inline constexpr int64_t kIgnoreIndex = -100;
COMPACT_HOST_DEVICE constexpr bool is_class(int64_t target, int64_t vocabulary) {
  return target >= 0 && target < vocabulary;
}
struct CrossEntropy {
  const void* logits;      // [rows, vocabulary] type
  const int64_t* targets;  // [rows]
  float* lse;              // [rows]
  float* loss;             // [rows]
  float* log_probs;        // [rows, vocabulary], or null
  int64_t rows, vocabulary;
  Type type;
};

// grad = (exp(p) - onehot(target)) * scale, 0 in ignored rows, with p = logits - lse (logits not
// null) or p = log_probs: both ways agree bit for bit.
struct CrossEntropyBackward {
  const void* logits;      // [rows, vocabulary] type, or null
  const float* log_probs;  // [rows, vocabulary], or null
  const float* lse;        // [rows], read with logits
  const int64_t* targets;  // [rows]
  void* grad;              // [rows, vocabulary] type; may alias logits
  int64_t rows, vocabulary;
  float scale;
  Type type;
};

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
//   probability 1/6 each, else 0 (Achlioptas 2003). Element i is sample(distribution, word i%4 of
//   philox(key, i/4)) of normal.h, times `scale` in f32, rounded to type.
enum class Distribution : uint8_t { kNormal, kRademacher, kSparse };
struct Draw {
  void* out;  // [count] type
  int64_t count;
  uint64_t key;
  float scale;
  Distribution distribution;
  Type type;
};

// Dropout (Srivastava et al. 2014): y = x / (1 - p) or 0. Element i is zeroed where its 16 random
// bits are below `dropped`, which is p in units of 2^-16: the low half (i even) or the high half of
// word i%8/2 of philox(key, i/8). A zeroed NaN is 0.
struct Dropout {
  const void* x;  // [count] type
  void* y;        // [count] type; may alias x
  int64_t count;
  uint64_t key;
  uint32_t dropped;  // below 2^16
  Type type;
};
// What the elements that stay are multiplied by.
inline float dropout_scale(uint32_t dropped) {
  return 65536.0f / static_cast<float>(65536 - dropped);
}

// One AdamW step (Loshchilov and Hutter 2019) on one tensor, in the order of torch.optim.AdamW:
//   g = grad * grad_scale; p -= lr * weight_decay * p; m += (1 - beta1)(g - m);
//   v = beta2 v + (1 - beta2) g^2; p -= (lr / bias1) m / (sqrt(v) / sqrt(bias2) + eps).
// lr * weight_decay, 1 - beta, lr / bias1 and 1 / sqrt(bias2) are made once, in f32. The step uses
// m and v before they are rounded. bf16 m and v are rounded stochastically: to nearest, v at beta2
// = 0.999 would never decay. p: f32; or bf16 with an f32 master (the master is updated, p is its
// nearest); or bf16 alone, rounded stochastically. Element i takes its random bits from word
// w = word i%4 of philox(key, i/4): p the low half, m the high half, v the high half of
// w * kThirdHalf (mod 2^32), each uniform on 16 bits. So nothing depends on threads, and one call
// serves four elements.
inline constexpr uint32_t kThirdHalf = 0x9E3779B1u;
struct AdamW {
  void* param;              // [count] type
  float* master;            // [count], or null
  const void* grad;         // [count] grad_type
  const float* grad_scale;  // one value on the device, or null for 1
  void* m;                  // [count] state_type
  void* v;                  // [count] state_type
  int64_t count;
  float lr, beta1, beta2, eps, weight_decay;
  float bias1, bias2;  // 1 - beta^step
  uint64_t key;
  Type type, grad_type, state_type;
};

// w = decay * w + alpha * d. bf16 w as in AdamW: with a master, else stochastic. One Philox call
// serves eight elements: with e = offset + i, element i takes half e%2 (0: low) of word (e%8)/2 of
// philox(key, e/8).
struct Fold {
  void* w;         // [count] type
  float* master;   // [count], or null
  const float* d;  // [count]
  int64_t count;
  float decay, alpha;
  uint64_t key, offset;
  Type type;
};

// Rows in 8-bit floats that share a power of two over kFloat8Block neighbours of a row (float8.h
// says what a code means). With b the block's number, rows after rows, its element j takes half
// j%2 (0: low) of word (j%8)/2 of philox(key, 32 b + j/8). A block with a NaN or an infinity reads
// back as NaN.
inline constexpr int64_t kFloat8Block = 256;
struct Float8Pack {
  const float* x;  // [rows, n]
  uint8_t* codes;  // [rows, n]
  float* scales;   // [rows, ceil(n / kFloat8Block)]
  int64_t rows, n;
  bool is_signed;  // else x >= 0, and what is not 0 stays so
  uint64_t key;
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
// range. Positive levels are for what a ReLU leaves: 0 has a code of its own, which nothing else
// gets (what is below 0 reads back as 0), the others span the range from 0 up. Stochastic rounding
// is unbiased but for 2^-16 of a step (positive levels: 2^-10). A group with a NaN, an infinity or
// a range beyond f32 reads back as NaN.
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

// One bit an element, by its bits as an unsigned number u: set where low <= u < low + span. Bit i
// is bit i%8 of byte i/8; bits beyond the end are 0. Where an element is neither in the range nor
// equal to `other`, *strays is set to 1 (it is not cleared; null: nobody asks).
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

struct Backend {
  const char* name;
  Device device;
  Required<void(const RmsNorm&, const Launch&)> rms_norm;
  Required<void(const RmsNormBackward&, const Launch&)> rms_norm_backward;
  Required<void(const Rope&, const Launch&)> rope;
  Required<void(const SwiGlu&, const Launch&)> swiglu;
  Required<void(const SwiGluBackward&, const Launch&)> swiglu_backward;
  Required<void(const CrossEntropy&, const Launch&)> cross_entropy;
  Required<void(const CrossEntropyBackward&, const Launch&)> cross_entropy_backward;
  Required<void(const Srht&, const Launch&)> srht;
  Required<void(const SrhtTranspose&, const Launch&)> srht_transpose;
  Required<void(const Draw&, const Launch&)> draw;
  Required<void(const Dropout&, const Launch&)> dropout;
  Required<void(const AdamW&, const Launch&)> adamw;
  Required<void(const Fold&, const Launch&)> fold;
  Required<void(const Float8Pack&, const Launch&)> float8_pack;
  Required<void(const Float8Unpack&, const Launch&)> float8_unpack;
  Required<void(const Quantize&, const Launch&)> quantize;
  Required<void(const Dequantize&, const Launch&)> dequantize;
  Required<void(const BitPack&, const Launch&)> bit_pack;
  Required<void(const BitUnpack&, const Launch&)> bit_unpack;
};

// All backends of this build, fastest first.
std::span<const Backend* const> backends();
// The fastest backend for a device; throws where this build has none.
const Backend& backend_for(Device);

}  // namespace compact::kernels
