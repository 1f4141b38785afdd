// SPDX-License-Identifier: Apache-2.0
#include "compact/networks/pre_norm_block.h"

#include "compact/ops/stages/stages.h"

namespace compact {

void add_pre_norm_block(Network::Part& part, const std::string& name, const Policy& policy,
                        const PreNormBlock& block, const BlockShape& shape,
                        std::shared_ptr<const Stage> attention) {
  const int64_t n = block.qkv.weight->weight.size(1), m = block.up.weight->weight.size(0);
  const auto slot = [&](const char* rest, Role role, int64_t width) {
    return slot_of(policy, name + "." + rest, role, width);
  };
  const auto norm = [&](const Network::Affine& a, Slot output) {
    part.add(layer_norm_stage(shape.eps, /*for_products=*/true), {a.weight, a.bias},
             std::move(output));
  };
  const auto drop = [&] {
    if (shape.dropout > 0) part.add(dropout_stage(shape.dropout));
  };
  norm(block.attn_norm, slot("attn.norm", Role::kNorm, n));
  part.add_linear(block.qkv, slot("attn.qkv", Role::kQkv, block.qkv.weight->weight.size(0)));
  part.add(std::move(attention), {}, slot("attn.out", Role::kAttention, n));
  part.add_linear(block.out);
  drop();
  const int middle = part.segment.add_residual(0, slot("mlp.input", Role::kResidual, n));
  norm(block.mlp_norm, slot("mlp.norm", Role::kNorm, n));
  part.add_linear(block.up, slot("mlp.up", Role::kPreActivation, m));
  part.add(gelu_stage(shape.gelu_tanh), {}, slot("mlp.gelu", Role::kActivation, m));
  part.add_linear(block.down);
  drop();
  part.segment.add_residual(middle);
  part.segment.finish();
}

}  // namespace compact
