// SPDX-License-Identifier: Apache-2.0
// From a Type to the C++ type: the only place that lists element types.
#pragma once

#include <utility>

#include "compact/kernels/bfloat16.h"
#include "compact/kernels/kernels.h"

namespace compact::kernels {

// Calls f.template operator()<T>().
template <class F>
void with_type(Type type, F&& f) {
  switch (type) {
    case Type::kFloat32:
      return std::forward<F>(f).template operator()<float>();
    case Type::kBFloat16:
      return std::forward<F>(f).template operator()<BFloat16>();
  }
}

// Calls f.template operator()<A, B>().
template <class F>
void with_types(Type a, Type b, F&& f) {
  with_type(a, [&]<class A>() { with_type(b, [&]<class B>() { f.template operator()<A, B>(); }); });
}

// Calls f.template operator()<U>() with the unsigned integer of 1, 2 or 4 bytes.
template <class F>
void with_word(int bytes, F&& f) {
  if (bytes == 1) return std::forward<F>(f).template operator()<uint8_t>();
  if (bytes == 2) return std::forward<F>(f).template operator()<uint16_t>();
  std::forward<F>(f).template operator()<uint32_t>();
}

}  // namespace compact::kernels
