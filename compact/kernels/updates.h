// SPDX-License-Identifier: Apache-2.0
// The arguments of the kernels that change weights. kernels.h has the rules.
#pragma once

#include "compact/base/philox.h"
#include "compact/kernels/launch.h"

namespace compact::kernels {

// Whether a kernel must write nothing: its guard, one value on the device or null, is NaN or not 0.
// So a step that turns out not to be finite changes nothing, without asking the host.
COMPACT_HOST_DEVICE inline bool held_back(const float* guard) { return guard && !(*guard == 0.0f); }

// The numbers of an AdamW step that change with every update.
struct AdamWNumbers {
  float lr, bias1, bias2;  // bias: 1 - beta^step
  uint64_t key;
};

// One AdamW step (Loshchilov and Hutter 2019) on one tensor, in the order of torch.optim.AdamW:
//   g = grad * grad_scale; p -= lr * weight_decay * p; m += (1 - beta1)(g - m);
//   v = beta2 v + (1 - beta2) g^2; p -= (lr / bias1) m / (sqrt(v) / sqrt(bias2) + eps).
// lr * weight_decay, 1 - beta, lr / bias1 and 1 / sqrt(bias2) are made once, in f32. The step uses
// m and v before they are rounded. bf16 m and v are rounded stochastically: to nearest, v at beta2
// = 0.999 would never decay. p: f32; or bf16 with an f32 master (the master is updated, p is its
// nearest); or bf16 alone, rounded stochastically. Element i takes its random bits from word
// w = word i%4 of philox(key, i/4): p the low half, m the high half, v the high half of
// w * kThirdHalf (mod 2^32), each uniform on 16 bits. So nothing depends on threads, and one call
// serves four elements.
inline constexpr uint32_t kThirdHalf = 0x9E3779B1u;
struct AdamW {
  void* param;              // [count] type
  float* master;            // [count], or null
  const void* grad;         // [count] grad_type
  const float* grad_scale;  // one value on the device, or null for 1
  void* m;                  // [count] state_type
  void* v;                  // [count] state_type
  int64_t count;
  float lr, beta1, beta2, eps, weight_decay;
  float bias1, bias2;  // 1 - beta^step
  uint64_t key;
  Type type, grad_type, state_type;
  const float* guard = nullptr;  // held_back
  // On the device, or null: read in place of lr, bias1, bias2 and key, so that a launch that is
  // replayed (from a CUDA graph) makes the next update.
  const AdamWNumbers* numbers = nullptr;
};

// a with the values of `numbers`, which must be in the host's memory, in its own fields.
inline AdamW with_numbers(AdamW a) {
  if (a.numbers) {
    a.lr = a.numbers->lr;
    a.bias1 = a.numbers->bias1;
    a.bias2 = a.numbers->bias2;
    a.key = a.numbers->key;
  }
  return a;
}

// The same on several tensors that share no memory. A GPU needs few launches: one for up to
// kAdamWTogether tensors of the same types and settings.
inline constexpr int kAdamWTogether = 48;
struct AdamWList {
  const AdamW* each;
  int64_t count;
};
inline bool steps_together(const AdamW& a, const AdamW& b) {
  return a.type == b.type && a.grad_type == b.grad_type && a.state_type == b.state_type &&
         a.grad_scale == b.grad_scale && a.guard == b.guard && a.beta1 == b.beta1 &&
         a.beta2 == b.beta2 && a.eps == b.eps && !a.numbers == !b.numbers &&
         (a.numbers || a.bias2 == b.bias2);
}

// How many launches a GPU needs for that; empty tensors need none.
inline int64_t launches_of(const AdamWList& list) {
  int64_t launches = 0;
  for (int64_t i = 0; i < list.count; ++i) {
    int64_t alike = 0;  // among those before
    for (int64_t j = 0; j < i; ++j) {
      alike += list.each[j].count > 0 && steps_together(list.each[j], list.each[i]);
    }
    launches += list.each[i].count > 0 && alike % kAdamWTogether == 0;
  }
  return launches;
}

// w = decay * w + alpha * d. bf16 w as in AdamW: with a master, else stochastic. One Philox call
// serves eight elements: with e = offset + i, element i takes half e%2 (0: low) of word (e%8)/2 of
// philox(key, e/8).
struct Fold {
  void* w;         // [count] type
  float* master;   // [count], or null
  const float* d;  // [count]
  int64_t count;
  float decay, alpha;
  uint64_t key, offset;
  Type type;
  const float* guard = nullptr;  // held_back
};

}  // namespace compact::kernels
