// SPDX-License-Identifier: Apache-2.0
// A transformer's block of LLaMA's and of Gemma's kind: grouped-query attention with rotary
// positions, a gated MLP, each half with a residual sum and with RMSNorm before it, after it or
// both.
//
// Slots, where the shape has what makes them: NAME.attn.{input,norm,qkv,heads,out,added},
// NAME.mlp.{input,norm,gate_up,product,added} and the gate's NAME.mlp.{silu or gelu}. Norms of
// heads give `heads`, norms after the halves read `added`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compact/base/function_ref.h"
#include "compact/networks/block_shape.h"
#include "compact/networks/network.h"

namespace compact {

struct GatedBlock {
  Network::Affine qkv, out, gate_up, down;
  // Null where the model has none.
  Network::Affine attn_norm, mlp_norm, q_norm, k_norm, attn_post, mlp_post;
};

// Give the weights of a block by their names in it. `padding`: zeros beside `out` and `in`.
using NormOf = FunctionRef<Network::Affine(const char* name, int64_t width)>;
using ProductOf = FunctionRef<Network::Affine(
    const char* name, int64_t in, std::vector<int64_t> out, bool bias, const ZeroPadding& padding)>;
// All weights of a block of this shape, asked for in the same order every time.
GatedBlock gated_block(const BlockShape& shape, NormOf norm, ProductOf product);

// Adds all stages of the block to `part`, which has its input slot already. Queries and keys are
// turned by `rope`; null: by the tables of the pass.
void add_gated_block(Network::Part& part, const std::string& name, const Policy& policy,
                     const GatedBlock& block, const BlockShape& shape,
                     std::shared_ptr<const RopeTables> rope,
                     std::shared_ptr<const Stage> attention);

}  // namespace compact
