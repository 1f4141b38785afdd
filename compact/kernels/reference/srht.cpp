// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <vector>

#include "compact/kernels/reference/reference.h"

namespace compact::kernels::reference {
namespace {

void flip(float* x, int64_t n, const uint32_t* signs, int64_t first) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t bit = first + i;
    if (signs[bit / 32] >> (bit % 32) & 1) x[i] = -x[i];
  }
}

// The orthonormal Hadamard transform of k values.
void hadamard(float* x, int64_t k) {
  const float scale = 1 / std::sqrt(static_cast<float>(k));
  for (int64_t i = 0; i < k; ++i) x[i] *= scale;
  for (int64_t h = 1; h < k; h *= 2) {
    for (int64_t i = 0; i < k; ++i) {
      if (i & h) continue;
      const float a = x[i], b = x[i + h];
      x[i] = a + b;
      x[i + h] = a - b;
    }
  }
}

int64_t power_of_two(int64_t n) {
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n)));
}

float scale_of(const SrhtPlan& plan) {
  return std::sqrt(static_cast<float>(plan.n) / static_cast<float>(plan.r));
}

}  // namespace

void srht(const Srht& a, const Launch&) {
  const int64_t n = a.plan.n, r = a.plan.r;
  if (a.rows == 0 || n == 0) return;
  const int64_t k = power_of_two(n);
  with_type(a.type, [&]<class T>() {
    std::vector<float> x(static_cast<size_t>(n));
    for (int64_t row = 0; row < a.rows; ++row) {
      for (int64_t i = 0; i < n; ++i) x[i] = load(static_cast<const T*>(a.x)[row * a.x_stride + i]);
      flip(x.data(), n, a.plan.signs, 0);
      hadamard(x.data(), k);
      if (k < n) {
        flip(x.data() + n - k, k, a.plan.signs, n);
        hadamard(x.data() + n - k, k);
      }
      for (int64_t j = 0; j < r; ++j) {
        store(static_cast<T*>(a.z)[row * r + j], x[a.plan.index[j]] * scale_of(a.plan));
      }
    }
  });
}

void srht_transpose(const SrhtTranspose& a, const Launch&) {
  const int64_t n = a.plan.n, r = a.plan.r;
  if (a.rows == 0 || n == 0) return;
  const int64_t k = power_of_two(n);
  with_type(a.type, [&]<class T>() {
    for (int64_t row = 0; row < a.rows; ++row) {
      float* x = a.x + row * n;
      for (int64_t i = 0; i < n; ++i) x[i] = 0;
      for (int64_t j = 0; j < r; ++j) {
        x[a.plan.index[j]] = load(static_cast<const T*>(a.z)[row * r + j]) * scale_of(a.plan);
      }
      if (k < n) {
        hadamard(x + n - k, k);
        flip(x + n - k, k, a.plan.signs, n);
      }
      hadamard(x, k);
      flip(x, n, a.plan.signs, 0);
    }
  });
}

}  // namespace compact::kernels::reference
