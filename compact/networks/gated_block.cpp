// SPDX-License-Identifier: Apache-2.0
#include "compact/networks/gated_block.h"

#include "compact/ops/stages/stages.h"

namespace compact {

GatedBlock gated_block(const BlockShape& s, NormOf norm, ProductOf product) {
  const int64_t n = s.hidden, m = s.intermediate, d = s.head_dim;
  const int64_t q = s.heads * d, kv = s.kv_heads * d;
  GatedBlock l;
  if (s.pre_norms) l.attn_norm = norm("attn.norm", n);
  l.qkv = product("attn.qkv", n, {q, kv, kv}, s.qkv_bias, {});
  l.out = product("attn.out", q, {n}, s.out_bias, {});
  if (s.post_norms) l.attn_post = norm("attn.post_norm", n);
  if (s.pre_norms) l.mlp_norm = norm("mlp.norm", n);
  l.gate_up = product("mlp.gate_up", n, {m, m}, s.mlp_bias, {.rows = s.zeros});
  l.down = product("mlp.down", m, {n}, s.mlp_bias, {.columns = s.zeros});
  if (s.post_norms) l.mlp_post = norm("mlp.post_norm", n);
  if (s.head_norms) {
    l.q_norm = norm("attn.q_norm", s.whole_norms ? q : d);
    l.k_norm = norm("attn.k_norm", s.whole_norms ? kv : d);
  }
  return l;
}

void add_gated_block(Network::Part& b, const std::string& name, const Policy& policy,
                     const GatedBlock& l, const BlockShape& s,
                     std::shared_ptr<const RopeTables> rope,
                     std::shared_ptr<const Stage> attention) {
  const int64_t n = s.hidden, m = s.intermediate + s.zeros, d = s.head_dim;
  const int64_t heads = s.heads, kv_heads = s.kv_heads;
  const double offset = s.norms_add_one ? 1 : 0;
  const auto slot = [&](const char* rest, Role role, int64_t width) {
    return slot_of(policy, name + "." + rest, role, width);
  };
  const auto norm = [&](const Network::Affine& a, Slot output) {
    b.add(rms_norm_stage(s.eps, offset), {a.weight}, std::move(output));
  };
  const auto add_product = [&](const Network::Affine& product, const Network::Affine& post,
                               const char* rest) {
    b.add_linear(product, post.weight ? slot(rest, Role::kAdded, n) : Slot{});
    if (post.weight) norm(post, {});
    if (s.residual != 1) b.add(scale_stage(s.residual));
  };
  if (s.pre_norms) norm(l.attn_norm, slot("attn.norm", Role::kNorm, n));
  // Rotation is in place, and its backward pass undoes it; so the unrotated product is held only
  // where norms of heads read it, or where there is no rotation.
  const Slot qkv = slot("attn.qkv", Role::kQkv, (heads + 2 * kv_heads) * d), none = {};
  b.add_linear(l.qkv, s.rope && !s.head_norms ? none : qkv);
  // Norms of the whole width leave queries and keys near 1 beside values of any size, and a codec
  // would round the former by steps of the latter's size: so the product is held, and these are
  // rebuilt.
  const Slot read = !s.head_norms   ? qkv
                    : s.whole_norms ? none
                                    : slot("attn.heads", Role::kHeads, qkv.width);
  if (s.head_norms) {
    b.add(s.whole_norms ? head_norm_stage(s.eps, 1, 1, heads * d, offset, kv_heads * d)
                        : head_norm_stage(s.eps, heads, kv_heads, d, offset),
          {l.q_norm.weight, l.k_norm.weight}, s.rope ? none : read);
  }
  if (s.rope) b.add(rope_stage(std::move(rope), heads + kv_heads, d), {}, read);
  b.add(std::move(attention), {}, slot("attn.out", Role::kAttention, heads * d));
  add_product(l.out, l.attn_post, "attn.added");
  const int middle = b.segment.add_residual(0, slot("mlp.input", Role::kResidual, n));
  if (s.pre_norms) norm(l.mlp_norm, slot("mlp.norm", Role::kNorm, n));
  b.add_linear(l.gate_up, slot("mlp.gate_up", Role::kGateUp, 2 * m));
  b.add(s.geglu ? geglu_stage(m) : swiglu_stage(m), {}, slot("mlp.product", Role::kProduct, m),
        slot(s.geglu ? "mlp.gelu" : "mlp.silu", Role::kGate, m));
  add_product(l.down, l.mlp_post, "mlp.added");
  b.segment.add_residual(middle);
  b.segment.finish();
}

}  // namespace compact
