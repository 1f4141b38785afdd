// SPDX-License-Identifier: Apache-2.0
// The arguments of the kernels of layers: norms, rotary embedding, SwiGLU, cross-entropy, dropout.
// kernels.h has the rules.
#pragma once

#include "compact/base/philox.h"
#include "compact/kernels/launch.h"

namespace compact::kernels {

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

// Gradients of RmsNorm. The weight's gradient is summed over parts_count ranges of rows (range p is
// rows [p*rows/parts, (p+1)*rows/parts)), then over the parts in an order that does not change.
struct RmsNormBackward {
  const void* gy;        // [rows, n] type
  const void* x;         // [rows, n] type
  const void* weight;    // [n] weight_type
  const float* rstd;     // [rows]
  const void* residual;  // [rows, n] type or null: added to gx in f32 before rounding
  void* gx;              // [rows, n] type; may alias gy or residual
  void* gweight;         // [n] weight_type, overwritten; null: not wanted (parts is unused then)
  float* parts;          // [parts_count, n] scratch
  int64_t rows, n, parts_count;
  Type type, weight_type;
};

// How many parts a device takes for [rows, n], at least 1. A GPU's are its blocks: as many as fill
// a large one.
constexpr int64_t rms_norm_parts(Device device, int64_t rows, int64_t n) {
  if (device != Device::kCuda) return 32;
  const int64_t most = (int64_t{1} << 20) / (n > 0 ? n : 1);
  const int64_t parts = most < 256 ? 256 : most > 8192 ? 8192 : most;
  return rows < 1 ? 1 : rows < parts ? rows : parts;
}

// Rotary position embedding in place of the first `dim` elements of each head, rotate-half
// convention: for i < dim/2, (a, b) = (x[i], x[i + dim/2]) -> (a cos - b sin, b cos + a sin);
// inverse: sin -> -sin. Token t is at position t % length of the tables.
struct Rope {
  void* x;           // [tokens, >= heads*head_stride] type; head h of a token is at h*head_stride
  const float* cos;  // [length, dim/2]
  const float* sin;  // [length, dim/2]
  int64_t tokens, length, heads, dim, head_stride, row_stride;
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
// where silu is read, or made again (rounded to type, so that both ways agree bit for bit).
struct SwiGluBackward {
  const void* gproduct;  // [rows, m] type
  const void* gate_up;   // [rows, 2m] type
  const void* silu;      // [rows, m] type, or null
  void* ggate_up;        // [rows, 2m] type; may alias gate_up
  int64_t rows, m;
  Type type;
};

// Per row: lse = log sum exp(logits), loss = lse - logits[target]; a row whose target is
// kIgnoreIndex has loss 0. log_probs = logits - lse. A row whose target is not a class has loss and
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
// The factor of elements that are not zeroed.
inline float dropout_scale(uint32_t dropped) {
  return 65536.0f / static_cast<float>(65536 - dropped);
}

}  // namespace compact::kernels
