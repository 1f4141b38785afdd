// SPDX-License-Identifier: Apache-2.0
#include "compact/networks/post_norm_block.h"

#include "compact/ops/stages/stages.h"

namespace compact {

void add_post_norm_block(Network::Part& part, int input, const std::string& name,
                         const Policy& policy, const PostNormBlock& block, const BlockShape& shape,
                         std::shared_ptr<const Stage> attention) {
  const int64_t n = block.out.weight->weight.size(0), m = block.up.weight->weight.size(0);
  const auto slot = [&](const char* rest, Role role, int64_t width) {
    return slot_of(policy, name + "." + rest, role, width);
  };
  const auto drop = [&] {
    if (shape.dropout > 0) part.add(dropout_stage(shape.dropout));
  };
  part.add_linear(block.qkv, slot("attn.qkv", Role::kQkv, 3 * n));
  part.add(std::move(attention), {}, slot("attn.out", Role::kAttention, n));
  part.add_linear(block.out);
  drop();
  part.segment.add_residual(input, slot("mlp.input", Role::kResidual, n));
  const int middle =
      part.add(layer_norm_stage(shape.eps), {block.mlp_norm.weight, block.mlp_norm.bias},
               slot("mlp.norm", Role::kNorm, n));
  part.add_linear(block.up, slot("mlp.up", Role::kPreActivation, m));
  part.add(gelu_stage(shape.gelu_tanh), {}, slot("mlp.gelu", Role::kActivation, m));
  part.add_linear(block.down);
  drop();
  part.segment.add_residual(middle);
}

}  // namespace compact
