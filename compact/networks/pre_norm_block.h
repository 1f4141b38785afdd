// SPDX-License-Identifier: Apache-2.0
// A transformer's block that norms what attention and MLP read (GPT-2, ViT): LayerNorm, attention,
// LayerNorm, two matrices with GELU between, each half with a residual sum.
//
// Slots: NAME.attn.{input,norm,qkv,out}, NAME.mlp.{input,norm,up,gelu}.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "compact/networks/block_shape.h"
#include "compact/networks/network.h"

namespace compact {

struct PreNormBlock {
  Network::Affine attn_norm, qkv, out, mlp_norm, up, down;
};

// Adds all stages of the block to `part`, which has its input slot already.
void add_pre_norm_block(Network::Part& part, const std::string& name, const Policy& policy,
                        const PreNormBlock& block, const BlockShape& shape,
                        std::shared_ptr<const Stage> attention);

}  // namespace compact
