// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "compact/kernels/cpu/cpu.h"
#include "compact/kernels/cpu/simd.h"

namespace compact::kernels::cpu {
namespace {

template <class T, class W>
void rms_norm_row(const RmsNorm& a, int64_t row) {
  const T* x = static_cast<const T*>(a.x) + row * a.n;
  const W* weight = static_cast<const W*>(a.weight);
  T* y = static_cast<T*>(a.y) + row * a.n;
  const float sum = sum_lanes(a.n, [&](int64_t i, auto count) {
    const Vec v = load(x + i, count);
    return v * v;
  });
  const float rstd = 1 / std::sqrt(sum / static_cast<float>(a.n) + a.eps);
  a.rstd[row] = rstd;
  for_lanes(a.n, [&](int64_t i, auto count) {
    store(y + i, load(x + i, count) * rstd * load(weight + i, count), count);
  });
}

// One row of gx; adds to `part` where it is not null.
template <class T, class W>
void rms_norm_backward_row(const RmsNormBackward& a, int64_t row, float* part) {
  const T* gy = static_cast<const T*>(a.gy) + row * a.n;
  const T* x = static_cast<const T*>(a.x) + row * a.n;
  const W* weight = static_cast<const W*>(a.weight);
  const T* residual = a.residual ? static_cast<const T*>(a.residual) + row * a.n : nullptr;
  T* gx = static_cast<T*>(a.gx) + row * a.n;
  const float rstd = a.rstd[row];
  const float dot = sum_lanes(a.n, [&](int64_t i, auto count) {
    return load(gy + i, count) * load(weight + i, count) * load(x + i, count);
  });
  const float pull = dot / static_cast<float>(a.n) * rstd * rstd;
  for_lanes(a.n, [&](int64_t i, auto count) {
    const Vec g = load(gy + i, count), v = load(x + i, count);
    if (part) store(part + i, load(part + i, count) + g * (v * rstd), count);
    Vec out = (g * load(weight + i, count) - v * pull) * rstd;
    if (residual) out += load(residual + i, count);
    store(gx + i, out, count);
  });
}

}  // namespace

void rms_norm(const RmsNorm& a, const Launch& launch) {
  with_types(a.type, a.weight_type, [&]<class T, class W>() {
    launch.parallel_for(a.rows, row_grain(a.n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) rms_norm_row<T, W>(a, row);
    });
  });
}

void rms_norm_backward(const RmsNormBackward& a, const Launch& launch) {
  with_types(a.type, a.weight_type, [&]<class T, class W>() {
    launch.parallel_for(a.parts_count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        float* part = a.gweight ? a.parts + p * a.n : nullptr;
        if (part) std::memset(part, 0, static_cast<size_t>(a.n) * sizeof(float));
        const int64_t last = (p + 1) * a.rows / a.parts_count;
        for (int64_t row = p * a.rows / a.parts_count; row < last; ++row) {
          rms_norm_backward_row<T, W>(a, row, part);
        }
      }
    });
    if (!a.gweight) return;
    for_lanes(a.n, [&](int64_t i, auto count) {
      Vec sum{};
      for (int64_t p = 0; p < a.parts_count; ++p) sum += load(a.parts + p * a.n + i, count);
      store(static_cast<W*>(a.gweight) + i, sum, count);
    });
  });
}

}  // namespace compact::kernels::cpu
