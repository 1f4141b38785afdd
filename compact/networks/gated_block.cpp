// SPDX-License-Identifier: Apache-2.0
#include "compact/networks/gated_block.h"

#include "compact/ops/stages/stages.h"

namespace compact {

void add_gated_block(Network::Part& b, const std::string& name, const Policy& policy,
                     const GatedBlock& l, const GatedBlockOptions& options) {
  const int64_t n = options.hidden, m = options.intermediate, d = options.head_dim;
  const int64_t heads = options.heads, kv_heads = options.kv_heads;
  const double offset = options.norms_add_one ? 1 : 0;
  const auto slot = [&](const char* rest, Role role, int64_t width) {
    return slot_of(policy, name + "." + rest, role, width);
  };
  const auto norm = [&](const Network::Affine& a, Slot output) {
    b.add(rms_norm_stage(options.eps, offset), {a.weight}, std::move(output));
  };
  const auto add_product = [&](const Network::Affine& product, const Network::Affine& post,
                               const char* rest) {
    b.add_linear(product, post.weight ? slot(rest, Role::kAdded, n) : Slot{});
    if (post.weight) norm(post, {});
    if (options.residual != 1) b.add(scale_stage(options.residual));
  };
  norm(l.attn_norm, slot("attn.norm", Role::kNorm, n));
  // Rotation is in place, and its backward pass undoes it; so the unrotated product is held only
  // where norms of heads read it, or where there is no rotation.
  const Slot qkv = slot("attn.qkv", Role::kQkv, (heads + 2 * kv_heads) * d), none = {};
  const bool norms = l.q_norm.weight != nullptr;
  b.add_linear(l.qkv, options.rope && !norms ? none : qkv);
  const Slot read = norms ? slot("attn.heads", Role::kHeads, qkv.width) : qkv;
  if (norms) {
    b.add(head_norm_stage(options.eps, heads, kv_heads, d, offset),
          {l.q_norm.weight, l.k_norm.weight}, options.rope ? none : read);
  }
  if (options.rope) b.add(options.rope, {}, read);
  b.add(options.attention, {}, slot("attn.out", Role::kAttention, heads * d));
  add_product(l.out, l.attn_post, "attn.added");
  const int middle = b.segment.add_residual(0, slot("mlp.input", Role::kResidual, n));
  norm(l.mlp_norm, slot("mlp.norm", Role::kNorm, n));
  b.add_linear(l.gate_up, slot("mlp.gate_up", Role::kGateUp, 2 * m));
  b.add(options.geglu ? geglu_stage(m) : swiglu_stage(m), {},
        slot("mlp.product", Role::kProduct, m),
        slot(options.geglu ? "mlp.gelu" : "mlp.silu", Role::kGate, m));
  add_product(l.down, l.mlp_post, "mlp.added");
  b.segment.add_residual(middle);
  b.segment.finish();
}

}  // namespace compact
