// SPDX-License-Identifier: Apache-2.0
#include "compact/kernels/cpu/cpu.h"
#include "compact/kernels/cpu/simd.h"

namespace compact::kernels::cpu {

void swiglu(const SwiGlu& a, const Launch& launch) {
  with_type(a.type, [&]<class T>() {
    launch.parallel_for(a.rows, row_grain(4 * a.m), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* gates = static_cast<const T*>(a.gate_up) + row * 2 * a.m;
        const T* up = gates + a.m;
        T* silu = a.silu ? static_cast<T*>(a.silu) + row * a.m : nullptr;
        T* product = a.product ? static_cast<T*>(a.product) + row * a.m : nullptr;
        for_lanes(a.m, [&](int64_t i, auto count) {
          const Vec gate = load(gates + i, count);
          const Vec s = rounded<T>(gate * sigmoid(gate));
          if (silu) store(silu + i, s, count);
          if (product) store(product + i, s * load(up + i, count), count);
        });
      }
    });
  });
}

void swiglu_backward(const SwiGluBackward& a, const Launch& launch) {
  with_type(a.type, [&]<class T>() {
    launch.parallel_for(a.rows, row_grain(4 * a.m), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* gates = static_cast<const T*>(a.gate_up) + row * 2 * a.m;
        const T* gproduct = static_cast<const T*>(a.gproduct) + row * a.m;
        const T* silu = a.silu ? static_cast<const T*>(a.silu) + row * a.m : nullptr;
        T* out = static_cast<T*>(a.ggate_up) + row * 2 * a.m;
        for_lanes(a.m, [&](int64_t i, auto count) {
          const Vec g = load(gproduct + i, count), gate = load(gates + i, count);
          const Vec up = load(gates + a.m + i, count), s = sigmoid(gate);
          const Vec activation = silu ? load(silu + i, count) : rounded<T>(gate * s);
          store(out + i, g * up * (s + gate * s * (1.0f - s)), count);
          store(out + a.m + i, g * activation, count);
        });
      }
    });
  });
}

}  // namespace compact::kernels::cpu
