// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "compact/kernels/reference/reference.h"

namespace compact::kernels::reference {
namespace {

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// silu(gate), rounded to T.
template <class T>
T silu_of(float gate) {
  T out;
  store(out, gate * sigmoid(gate));
  return out;
}

}  // namespace

void swiglu(const SwiGlu& a, const Launch&) {
  with_type(a.type, [&]<class T>() {
    for (int64_t row = 0; row < a.rows; ++row) {
      const T* gate = static_cast<const T*>(a.gate_up) + row * 2 * a.m;
      const T* up = gate + a.m;
      for (int64_t i = 0; i < a.m; ++i) {
        const T silu = silu_of<T>(load(gate[i]));
        if (a.silu) static_cast<T*>(a.silu)[row * a.m + i] = silu;
        if (a.product) store(static_cast<T*>(a.product)[row * a.m + i], load(silu) * load(up[i]));
      }
    }
  });
}

void swiglu_backward(const SwiGluBackward& a, const Launch&) {
  with_type(a.type, [&]<class T>() {
    for (int64_t row = 0; row < a.rows; ++row) {
      const T* gates = static_cast<const T*>(a.gate_up) + row * 2 * a.m;
      T* out = static_cast<T*>(a.ggate_up) + row * 2 * a.m;
      for (int64_t i = 0; i < a.m; ++i) {
        const float g = load(static_cast<const T*>(a.gproduct)[row * a.m + i]);
        const float gate = load(gates[i]), up = load(gates[a.m + i]);
        const float s = sigmoid(gate);
        const T silu = a.silu ? static_cast<const T*>(a.silu)[row * a.m + i] : silu_of<T>(gate);
        store(out[i], g * up * (s + gate * s * (1 - s)));
        store(out[a.m + i], g * load(silu));
      }
    }
  });
}

}  // namespace compact::kernels::reference
