// SPDX-License-Identifier: Apache-2.0
// A transformer's block that norms what attention and MLP have been added to (BERT): attention,
// LayerNorm, two matrices with GELU between, each half with a residual sum.
//
// Slots: NAME.attn.{qkv,out}, NAME.mlp.{input,norm,up,gelu}.
#pragma once

#include <memory>
#include <string>

#include "compact/networks/block_shape.h"
#include "compact/networks/network.h"

namespace compact {

struct PostNormBlock {
  Network::Affine qkv, out, mlp_norm, up, down;
};

// Appends the block to a part: from tensor `input` to the sum that the next norm reads.
void add_post_norm_block(Network::Part& part, int input, const std::string& name,
                         const Policy& policy, const PostNormBlock& block, const BlockShape& shape,
                         std::shared_ptr<const Stage> attention);

}  // namespace compact
