// SPDX-License-Identifier: Apache-2.0
// A transformer's block of LLaMA's and of Gemma's kind: RMSNorm, grouped-query attention with
// rotary positions, RMSNorm, a gated MLP, each half with a residual sum.
//
// Slots: NAME.attn.{input,norm,qkv,out}, NAME.mlp.{input,norm,gate_up,product} and the gate's
// NAME.mlp.{silu or gelu}; with norms of heads also NAME.attn.heads, their result; with norms after
// the halves also NAME.{attn,mlp}.added, which these norms read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "compact/networks/network.h"

namespace compact {

struct GatedBlock {
  Network::Affine attn_norm, qkv, out, mlp_norm, gate_up, down;
  Network::Affine q_norm, k_norm, attn_post, mlp_post;  // null where the model has none
};

struct GatedBlockOptions {
  int64_t hidden = 0, intermediate = 0;  // padding included
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  double eps = 1e-6;                  // of norms
  bool norms_add_one = false;         // norms multiply by 1 + their weight
  bool geglu = false;                 // with the approximation of GELU by tanh; else SwiGLU
  double residual = 1;                // multiplies what each half adds
  std::shared_ptr<const Stage> rope;  // of queries and keys; null: no rotation
  std::shared_ptr<const Stage> attention;
};

// Adds all stages of the block to `part`, which has its input slot already.
void add_gated_block(Network::Part& part, const std::string& name, const Policy& policy,
                     const GatedBlock& block, const GatedBlockOptions& options);

}  // namespace compact
