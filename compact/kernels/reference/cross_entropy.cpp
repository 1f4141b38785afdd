// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "compact/kernels/reference/reference.h"

namespace compact::kernels::reference {

void cross_entropy(const CrossEntropy& a, const Launch&) {
  with_type(a.type, [&]<class T>() {
    for (int64_t row = 0; row < a.rows; ++row) {
      const T* x = static_cast<const T*>(a.logits) + row * a.vocabulary;
      float highest = -std::numeric_limits<float>::infinity();
      for (int64_t i = 0; i < a.vocabulary; ++i) highest = std::fmax(highest, load(x[i]));
      double sum = 0;
      for (int64_t i = 0; i < a.vocabulary; ++i) sum += std::exp(load(x[i]) - highest);
      const float lse = highest + static_cast<float>(std::log(sum));
      a.lse[row] = lse;
      const int64_t target = a.targets[row];
      a.loss[row] = target == kIgnoreIndex           ? 0
                    : is_class(target, a.vocabulary) ? lse - load(x[target])
                                                     : std::numeric_limits<float>::quiet_NaN();
      if (!a.log_probs) continue;
      for (int64_t i = 0; i < a.vocabulary; ++i) {
        a.log_probs[row * a.vocabulary + i] = load(x[i]) - lse;
      }
    }
  });
}

void cross_entropy_backward(const CrossEntropyBackward& a, const Launch&) {
  with_type(a.type, [&]<class T>() {
    for (int64_t row = 0; row < a.rows; ++row) {
      const int64_t target = a.targets[row];
      for (int64_t i = 0; i < a.vocabulary; ++i) {
        const int64_t at = row * a.vocabulary + i;
        const float p =
            a.logits ? load(static_cast<const T*>(a.logits)[at]) - a.lse[row] : a.log_probs[at];
        const float g = is_class(target, a.vocabulary)
                            ? (std::exp(p) - (i == target ? 1.0f : 0.0f)) * a.scale
                            : std::numeric_limits<float>::quiet_NaN();
        store(static_cast<T*>(a.grad)[at], target == kIgnoreIndex ? 0 : g);
      }
    }
  });
}

}  // namespace compact::kernels::reference
