// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "compact/kernels/cpu/cpu.h"
#include "compact/kernels/cpu/simd.h"

namespace compact::kernels::cpu {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity(),
                kNotANumber = std::numeric_limits<float>::quiet_NaN();

COMPACT_INLINE Vec larger(Vec a, Vec b) { return select(b > a, b, a); }  // ignores NaN in b

template <class T>
float row_max(const T* x, int64_t n) {
  Vec m0 = splat(kLowest), m1 = m0;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    m0 = larger(m0, load(x + i));
    m1 = larger(m1, load(x + i + kLanes));
  }
  float best = across(larger(m0, m1), [](float a, float b) { return b > a ? b : a; });
  for (; i < n; ++i) best = load(x[i]) > best ? load(x[i]) : best;
  return best;
}

// x with zeros in the lanes from n on.
COMPACT_INLINE Vec keep(Vec x, Full) { return x; }
COMPACT_INLINE Vec keep(Vec x, int n) { return fill_from(x, n, 0.0f); }

}  // namespace

void cross_entropy(const CrossEntropy& a, const Launch& launch) {
  with_type(a.type, [&]<class T>() {
    launch.parallel_for(a.rows, row_grain(4 * a.vocabulary), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* x = static_cast<const T*>(a.logits) + row * a.vocabulary;
        const float highest = row_max(x, a.vocabulary);
        const float sum = sum_lanes(a.vocabulary, [&](int64_t i, auto count) {
          return keep(exp(load(x + i, count) - highest), count);
        });
        const float lse = highest + static_cast<float>(std::log(static_cast<double>(sum)));
        a.lse[row] = lse;
        const int64_t target = a.targets[row];
        a.loss[row] = target == kIgnoreIndex           ? 0
                      : is_class(target, a.vocabulary) ? lse - load(x[target])
                                                       : kNotANumber;
        if (!a.log_probs) continue;
        float* log_probs = a.log_probs + row * a.vocabulary;
        for_lanes(a.vocabulary, [&](int64_t i, auto count) {
          store(log_probs + i, load(x + i, count) - lse, count);
        });
      }
    });
  });
}

void cross_entropy_backward(const CrossEntropyBackward& a, const Launch& launch) {
  with_type(a.type, [&]<class T>() {
    const auto row_gradient = [&](int64_t row) {
      const int64_t target = a.targets[row];
      T* grad = static_cast<T*>(a.grad) + row * a.vocabulary;
      if (target == kIgnoreIndex) {
        std::memset(grad, 0, static_cast<size_t>(a.vocabulary) * sizeof(T));
        return;
      }
      if (!is_class(target, a.vocabulary)) {
        for (int64_t i = 0; i < a.vocabulary; ++i) store(grad[i], kNotANumber);
        return;
      }
      const auto gradient = [&](auto&& log_prob) {
        // before the loop, since grad may be logits
        const float at_target = (lanes(exp(log_prob(target, 1)))[0] - 1.0f) * a.scale;
        for_lanes(a.vocabulary, [&](int64_t i, auto count) {
          store(grad + i, exp(log_prob(i, count)) * a.scale, count);
        });
        store(grad[target], at_target);
      };
      if (a.logits) {
        const T* x = static_cast<const T*>(a.logits) + row * a.vocabulary;
        const float lse = a.lse[row];
        gradient([=](int64_t i, auto count) { return load(x + i, count) - lse; });
      } else {
        const float* p = a.log_probs + row * a.vocabulary;
        gradient([=](int64_t i, auto count) { return load(p + i, count); });
      }
    };
    launch.parallel_for(a.rows, row_grain(4 * a.vocabulary), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) row_gradient(row);
    });
  });
}

}  // namespace compact::kernels::cpu
