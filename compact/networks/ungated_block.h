// SPDX-License-Identifier: Apache-2.0
// A transformer's block without a gate: attention, two matrices with GELU between, each half with a
// residual sum. LayerNorm is of what the halves read (GPT-2, ViT), or of the sums (BERT), where the
// norm of the second sum is the next block's.
//
// Slots: NAME.attn.{qkv,out}, NAME.mlp.{input,norm,up,gelu}, with the first norm NAME.attn.norm.
#pragma once

#include <memory>
#include <string>

#include "compact/networks/block_shape.h"
#include "compact/networks/network.h"

namespace compact {

struct UngatedBlock {
  Network::Affine attn_norm, qkv, out, mlp_norm, up, down;
};

// Appends the block to a part: from tensor `input` (0: that of the part, as pre_norms need) to the
// second sum. Without pre_norms it does not read `attn_norm`.
void add_ungated_block(Network::Part& part, int input, const std::string& name,
                       const Policy& policy, const UngatedBlock& block, const BlockShape& shape,
                       std::shared_ptr<const Stage> attention);

}  // namespace compact
