// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "compact/kernels/reference/reference.h"

namespace compact::kernels::reference {
namespace {

template <class P, class G, class S>
void adamw_typed(const AdamW& a) {
  const float scale = a.grad_scale ? *a.grad_scale : 1.0f;
  const float decay = a.lr * a.weight_decay, step = a.lr / a.bias1;
  const float rest1 = 1 - a.beta1, rest2 = 1 - a.beta2, root = 1 / std::sqrt(a.bias2);
  for (int64_t i = 0; i < a.count; ++i) {
    const uint32_t w = philox(a.key, static_cast<uint64_t>(i / 4)).v[i % 4];
    P& param = static_cast<P*>(a.param)[i];
    S& m_out = static_cast<S*>(a.m)[i];
    S& v_out = static_cast<S*>(a.v)[i];
    const float g = load(static_cast<const G*>(a.grad)[i]) * scale;
    float p = a.master ? a.master[i] : load(param);
    float m = load(m_out), v = load(v_out);
    p -= decay * p;
    m += rest1 * (g - m);
    v = a.beta2 * v + rest2 * (g * g);
    p -= step * m / (std::sqrt(v) * root + a.eps);
    store_stochastic(m_out, m, w >> 16);
    store_stochastic(v_out, v, w * kThirdHalf >> 16);
    if (a.master) {
      a.master[i] = p;
      store(param, p);
    } else {
      store_stochastic(param, p, w & 0xffffu);
    }
  }
}

}  // namespace

void adamw(const AdamW& given, const Launch&) {
  const AdamW a = with_numbers(given);
  if (held_back(a.guard)) return;
  with_type(a.type, [&]<class P>() {
    with_type(a.grad_type, [&]<class G>() {
      with_type(a.state_type, [&]<class S>() { adamw_typed<P, G, S>(a); });
    });
  });
}

void adamw_all(const AdamWList& list, const Launch& launch) {
  for (int64_t i = 0; i < list.count; ++i) adamw(list.each[i], launch);
}

void fold(const Fold& a, const Launch&) {
  if (held_back(a.guard)) return;
  with_type(a.type, [&]<class T>() {
    for (int64_t i = 0; i < a.count; ++i) {
      const uint64_t e = a.offset + static_cast<uint64_t>(i);
      const uint32_t word = philox(a.key, e / 8).v[e % 8 / 2];
      T& out = static_cast<T*>(a.w)[i];
      const float w = a.decay * (a.master ? a.master[i] : load(out)) + a.alpha * a.d[i];
      if (a.master) {
        a.master[i] = w;
        store(out, w);
      } else {
        store_stochastic(out, w, e % 2 ? word >> 16 : word & 0xffffu);
      }
    }
  });
}

}  // namespace compact::kernels::reference
