// SPDX-License-Identifier: Apache-2.0
#include "compact/networks/ungated_block.h"

#include "compact/ops/stages/stages.h"

namespace compact {

void add_ungated_block(Network::Part& part, int input, const std::string& name,
                       const Policy& policy, const UngatedBlock& block, const BlockShape& shape,
                       std::shared_ptr<const Stage> attention) {
  const int64_t n = shape.hidden, m = shape.intermediate;
  const auto slot = [&](const char* rest, Role role, int64_t width) {
    return slot_of(policy, name + "." + rest, role, width);
  };
  const auto norm = [&](const Network::Affine& a, Slot output) {
    return part.add(layer_norm_stage(shape.eps, /*for_products=*/shape.pre_norms),
                    {a.weight, a.bias}, std::move(output));
  };
  const auto drop = [&] {
    if (shape.dropout > 0) part.add(dropout_stage(shape.dropout));
  };
  if (shape.pre_norms) norm(block.attn_norm, slot("attn.norm", Role::kNorm, n));
  part.add_linear(block.qkv, slot("attn.qkv", Role::kQkv, 3 * n));
  part.add(std::move(attention), {}, slot("attn.out", Role::kAttention, n));
  part.add_linear(block.out);
  drop();
  int middle = part.segment.add_residual(input, slot("mlp.input", Role::kResidual, n));
  const int normed = norm(block.mlp_norm, slot("mlp.norm", Role::kNorm, n));
  if (!shape.pre_norms) middle = normed;
  part.add_linear(block.up, slot("mlp.up", Role::kPreActivation, m));
  part.add(gelu_stage(shape.gelu_tanh), {}, slot("mlp.gelu", Role::kActivation, m));
  part.add_linear(block.down);
  drop();
  part.segment.add_residual(middle);
}

}  // namespace compact
