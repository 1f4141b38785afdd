// SPDX-License-Identifier: Apache-2.0
// The arguments of the kernels that change weights. kernels.h has the rules.
#pragma once

#include "compact/kernels/launch.h"

namespace compact::kernels {

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
};

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
};

}  // namespace compact::kernels
