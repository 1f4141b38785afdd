// SPDX-License-Identifier: Apache-2.0
// The backend of the meta device: runs nothing, so that a step can be planned without memory, and
// says what the kernels would read and write. It only asks which pointers are null.
#include <algorithm>
#include <utility>

#include "compact/kernels/kernel_watch.h"
#include "compact/kernels/kernels.h"

namespace compact::kernels {
namespace {

thread_local KernelWatch::See watching;

int64_t size_of(Type type) { return type == Type::kFloat32 ? 4 : 2; }

int64_t bytes_of(const RmsNorm& a) {
  return a.rows * (2 * a.n * size_of(a.type) + 4) + a.n * size_of(a.weight_type);
}
int64_t bytes_of(const RmsNormBackward& a) {
  const int64_t maps = a.residual ? 4 : 3;
  int64_t bytes = a.rows * (maps * a.n * size_of(a.type) + 4) + a.n * size_of(a.weight_type);
  if (a.gweight) bytes += a.n * size_of(a.weight_type) + 2 * a.parts_count * a.n * 4;
  return bytes;
}
int64_t bytes_of(const Rope& a) {
  const int64_t tables = std::min(a.tokens, a.length) * a.dim * 4;
  return 2 * a.tokens * a.heads * a.dim * size_of(a.type) + tables;
}
int64_t bytes_of(const SwiGlu& a) {
  return a.rows * a.m * size_of(a.type) * (2 + (a.silu ? 1 : 0) + (a.product ? 1 : 0));
}
int64_t bytes_of(const SwiGluBackward& a) {
  return a.rows * a.m * size_of(a.type) * (a.silu ? 6 : 5);
}
int64_t bytes_of(const CrossEntropy& a) {
  const int64_t element = size_of(a.type) + (a.log_probs ? 4 : 0);
  return a.rows * (a.vocabulary * element + 16);
}
int64_t bytes_of(const CrossEntropyBackward& a) {
  const int64_t element = (a.logits ? size_of(a.type) : 4) + size_of(a.type);
  return a.rows * (a.vocabulary * element + (a.logits ? 12 : 8));
}
int64_t bytes_of(const SrhtPlan& p) { return p.n / 8 + 4 * p.r; }
int64_t bytes_of(const Srht& a) {
  return a.rows * (a.plan.n + a.plan.r) * size_of(a.type) + bytes_of(a.plan);
}
int64_t bytes_of(const SrhtTranspose& a) {
  return a.rows * (4 * a.plan.n + a.plan.r * size_of(a.type)) + bytes_of(a.plan);
}
int64_t bytes_of(const Draw& a) { return a.count * size_of(a.type); }
int64_t bytes_of(const Dropout& a) { return 2 * a.count * size_of(a.type); }
// Bytes of reading and writing a weight, or of doing so to its master and writing the weight.
int64_t weight_bytes(const float* master, Type type) {
  return master ? 8 + size_of(type) : 2 * size_of(type);
}
int64_t bytes_of(const AdamW& a) {
  return a.count *
         (weight_bytes(a.master, a.type) + size_of(a.grad_type) + 4 * size_of(a.state_type));
}
int64_t bytes_of(const AdamWList& list) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < list.count; ++i) bytes += bytes_of(list.each[i]);
  return bytes;
}
int64_t bytes_of(const Fold& a) { return a.count * (weight_bytes(a.master, a.type) + 4); }
int64_t float8_bytes(int64_t rows, int64_t n) {
  return rows * (5 * n + (n + kFloat8Block - 1) / kFloat8Block * 4);
}
int64_t bytes_of(const Float8Pack& a) { return float8_bytes(a.rows, a.n); }
int64_t bytes_of(const Float8Unpack& a) { return float8_bytes(a.rows, a.n); }
template <class Quantizer>
int64_t quantizer_bytes(const Quantizer& a) {
  const QuantizeFormat& f = a.format;
  return a.rows * (a.n * size_of(a.type) + f.row_bytes(a.n) + 2 * f.groups(a.n) * size_of(f.scale));
}
int64_t bytes_of(const Quantize& a) { return quantizer_bytes(a); }
int64_t bytes_of(const Dequantize& a) { return quantizer_bytes(a); }
int64_t bytes_of(const Nf4Decode& a) {
  const int64_t count = a.rows * a.n, blocks = (count + kNf4Block - 1) / kNf4Block;
  const int64_t scales =
      a.scale_codes ? blocks + 4 * ((blocks + kNf4Nested - 1) / kNf4Nested) : 4 * blocks;
  return count * size_of(a.type) + (count + 1) / 2 + scales;
}
int64_t bytes_of(const BitPack& a) { return a.count * a.element + (a.count + 7) / 8; }
int64_t bytes_of(const BitUnpack& a) { return a.count * a.element + (a.count + 7) / 8; }

template <class Args>
int64_t launches_of(const Args&) {
  return 1;
}
int64_t launches_of(const RmsNormBackward& a) { return a.gweight ? 2 : 1; }
using kernels::launches_of;

template <class Args>
void show(const char* name, const Args& args) {
  if (watching) watching({name, bytes_of(args), launches_of(args)});
}

// The kernels, each of which only reports its call to the watch.
#define X(name, Args) \
  void shown_##name(const Args& args, const Launch&) { show(#name, args); }
COMPACT_KERNELS(X)
#undef X

}  // namespace

KernelWatch::KernelWatch(See see) { watching = std::move(see); }
KernelWatch::~KernelWatch() { watching = nullptr; }

#define X(name, Args) shown_##name,
extern const Backend meta_backend = {"meta", Device::kMeta, COMPACT_KERNELS(X)};
#undef X

}  // namespace compact::kernels
