// SPDX-License-Identifier: Apache-2.0
#include "compact/networks/block_shape.h"

#include "compact/base/check.h"
#include "compact/ops/stages/stages.h"

namespace compact {

BlockShape block_shape(int64_t hidden, int64_t intermediate, int64_t heads, int64_t kv_heads,
                       int64_t head_dim) {
  return {.hidden = hidden,
          .intermediate = intermediate,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim};
}

std::string difference(const BlockShape& a, const BlockShape& b) {
#define X(type, name, value, kinds) \
  if (a.name != b.name) return cat(#name " = ", a.name, " (", b.name, " is read back)");
  COMPACT_BLOCK_FIELDS(X)
#undef X
  return cat("zeros = ", a.zeros);
}

BlockShape read_block_shape(std::string_view kind, const std::map<std::string, double>& numbers,
                            std::string_view where) {
  enum Kinds : uint8_t { kUngated, kGated, kEvery };
  const Kinds own = kind == "gated" ? kGated : kUngated;
  COMPACT_CHECK(own == kGated || kind == "pre_norm" || kind == "post_norm", where,
                ": unknown kind `", kind, "`; known: gated, pre_norm, post_norm");
  BlockShape shape;
  shape.pre_norms = kind != "post_norm";
  for (const auto& [name, number] : numbers) {
    bool there = false;
    const auto set = [&, value = number, key = name](auto& field) {
      field = static_cast<std::remove_reference_t<decltype(field)>>(value);
      COMPACT_CHECK(static_cast<double>(field) == value, where, ": ", key,
                    " must be a whole number, a flag 0 or 1, is ", value);
      there = true;
    };
#define X(type, field, value, kinds) \
  if (name == #field && (kinds == kEvery || kinds == own)) set(shape.field);
    COMPACT_BLOCK_FIELDS(X)
#undef X
    COMPACT_CHECK(there, where, ": a ", kind, " block has no ", name);
  }
  const std::pair<const char*, int64_t> sizes[] = {
      {"hidden", shape.hidden},
      {"intermediate", shape.intermediate},
      {"heads", shape.heads},
      {"kv_heads", own == kGated ? shape.kv_heads : shape.heads},
      {"head_dim", shape.head_dim}};
  for (const auto& [name, size] : sizes) {
    COMPACT_CHECK(size > 0, where, ": ", name, " must be positive, is ", size);
  }
  COMPACT_CHECK(shape.scale > 0 || !numbers.contains("scale"), where,
                ": scale must be positive, is ", shape.scale);
  COMPACT_CHECK(own != kGated || shape.heads % shape.kv_heads == 0, where,
                ": heads must be a multiple of kv_heads, are ", shape.heads, " with ",
                shape.kv_heads);
  return shape;
}

std::shared_ptr<const Stage> attention_of(const BlockShape& s, c10::Device device,
                                          at::ScalarType type, bool padded) {
  return attention_stage(
      s.heads, s.kv_heads > 0 ? s.kv_heads : s.heads, s.head_dim,
      {.causal = s.causal,
       .padded = padded,
       .scale = s.scale > 0 ? std::optional(s.scale) : std::nullopt,
       .dropout = s.attention_dropout,
       .window = s.window,
       .softcap = s.softcap,
       .choice = choose_masked_attention(device, type, s.head_dim, s.attention_dropout)});
}

}  // namespace compact
