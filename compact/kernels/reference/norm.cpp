// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "compact/kernels/reference/reference.h"

namespace compact::kernels::reference {

void rms_norm(const RmsNorm& a, const Launch&) {
  with_types(a.type, a.weight_type, [&]<class T, class W>() {
    const W* weight = static_cast<const W*>(a.weight);
    for (int64_t row = 0; row < a.rows; ++row) {
      const T* x = static_cast<const T*>(a.x) + row * a.n;
      T* y = static_cast<T*>(a.y) + row * a.n;
      double sum = 0;
      for (int64_t i = 0; i < a.n; ++i) sum += load(x[i]) * load(x[i]);
      const float rstd = 1 / std::sqrt(static_cast<float>(sum / static_cast<double>(a.n)) + a.eps);
      a.rstd[row] = rstd;
      for (int64_t i = 0; i < a.n; ++i) store(y[i], load(x[i]) * rstd * load(weight[i]));
    }
  });
}

void rms_norm_backward(const RmsNormBackward& a, const Launch&) {
  with_types(a.type, a.weight_type, [&]<class T, class W>() {
    const W* weight = static_cast<const W*>(a.weight);
    for (int64_t p = 0; p < a.parts_count; ++p) {
      float* part = a.parts + p * a.n;
      if (a.gweight) {
        for (int64_t i = 0; i < a.n; ++i) part[i] = 0;
      }
      const int64_t end = (p + 1) * a.rows / a.parts_count;
      for (int64_t row = p * a.rows / a.parts_count; row < end; ++row) {
        const T* gy = static_cast<const T*>(a.gy) + row * a.n;
        const T* x = static_cast<const T*>(a.x) + row * a.n;
        const T* residual = a.residual ? static_cast<const T*>(a.residual) + row * a.n : nullptr;
        T* gx = static_cast<T*>(a.gx) + row * a.n;
        const float rstd = a.rstd[row];
        double dot = 0;
        for (int64_t i = 0; i < a.n; ++i) dot += load(gy[i]) * load(weight[i]) * load(x[i]);
        const float pull = static_cast<float>(dot / static_cast<double>(a.n)) * rstd * rstd;
        for (int64_t i = 0; i < a.n; ++i) {
          const float g = load(gy[i]), normed = load(x[i]) * rstd;
          if (a.gweight) part[i] += g * normed;
          float out = (g * load(weight[i]) - load(x[i]) * pull) * rstd;
          if (residual) out += load(residual[i]);
          store(gx[i], out);
        }
      }
    }
    if (!a.gweight) return;
    for (int64_t i = 0; i < a.n; ++i) {
      float sum = 0;
      for (int64_t p = 0; p < a.parts_count; ++p) sum += a.parts[p * a.n + i];
      store(static_cast<W*>(a.gweight)[i], sum);
    }
  });
}

}  // namespace compact::kernels::reference
