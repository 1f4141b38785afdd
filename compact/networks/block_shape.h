// SPDX-License-Identifier: Apache-2.0
// The shape of a transformer's block: models fill it, and layers of other programs have it as
// numbers by the names of its fields.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "compact/ops/segments/stage.h"

namespace compact {

// Type, name, default value, and the kinds of blocks that have it. "Elsewhere" is in files and in
// other programs.
#define COMPACT_BLOCK_FIELDS(X)                                                                 \
  X(int64_t, hidden, 0, kEvery)                                                                 \
  X(int64_t, intermediate, 0, kEvery)                                                           \
  X(int64_t, heads, 0, kEvery)                                                                  \
  X(int64_t, kv_heads, 0, kGated) /* 0: as many as heads, in blocks without a gate */           \
  X(int64_t, head_dim, 0, kEvery)                                                               \
  X(double, eps, 1e-6, kEvery)            /* of norms */                                        \
  X(double, scale, 0, kEvery)             /* of scores; 0: 1 / sqrt(head_dim) */                \
  X(double, attention_dropout, 0, kEvery) /* of probabilities, in training */                   \
  X(double, softcap, 0, kGated)           /* as in AttentionOptions */                          \
  X(int64_t, window, 0, kGated)           /* the same */                                        \
  X(bool, causal, true, kUngated)         /* to no later tokens */                              \
  X(bool, rope, true, kGated)             /* queries and keys are turned */                     \
  X(double, dropout, 0, kUngated)         /* of what each half adds */                          \
  X(double, residual, 1, kGated)          /* multiplies what each half adds */                  \
  X(bool, norms_add_one, false, kGated)   /* norms multiply by 1 + weight */                    \
  X(bool, pre_norms, true, kGated)        /* of what attention and MLP read */                  \
  X(bool, head_norms, false, kGated)      /* of each query and key, before rope */              \
  X(bool, post_norms, false, kGated)      /* of what each half adds */                          \
  X(bool, whole_norms, false, kGated) /* head_norms: of all queries at once, and of all keys */ \
  X(bool, geglu, false, kGated)       /* GELU by tanh; else SwiGLU */                           \
  X(bool, gelu_tanh, false, kUngated) /* the approximation */                                   \
  X(bool, qkv_bias, false, kEvery)                                                              \
  X(bool, out_bias, false, kGated)                                                              \
  X(bool, mlp_bias, false, kGated)                                                              \
  X(int64_t, qkv_parts, 3, kEvery)     /* matrices elsewhere; 1: fused */                       \
  X(int64_t, gate_up_parts, 2, kGated) /* the same */                                           \
  X(bool, transposed, false, kEvery)   /* matrices elsewhere are [in, out] */

struct BlockShape {
#define X(type, name, value, kinds) type name = value;
  COMPACT_BLOCK_FIELDS(X)
#undef X
  int64_t zeros = 0;  // that pad `intermediate`, see ZeroPadding
  bool operator==(const BlockShape&) const = default;
};
// One of these sizes.
BlockShape block_shape(int64_t hidden, int64_t intermediate, int64_t heads, int64_t kv_heads,
                       int64_t head_dim);

// The first field in which `a`, as written, and `b`, as read back, differ, with both values.
std::string difference(const BlockShape& a, const BlockShape& b);

// The shape of a block of this kind (gated, pre_norm, post_norm) from numbers by these names, flags
// as 0 and 1; a field without a number is as above. Throws InputError, beginning with `where`, on
// another kind, on a name that the kind does not have, on a count that is not a whole number, on a
// size or scale that is not positive and on heads that are not a multiple of kv_heads.
BlockShape read_block_shape(std::string_view kind, const std::map<std::string, double>& numbers,
                            std::string_view where);

// The attention of such a block, by the kernel that suits device and type. `padded`: sequences may
// have padding.
std::shared_ptr<const Stage> attention_of(const BlockShape& shape, c10::Device device,
                                          at::ScalarType type, bool padded = false);

}  // namespace compact
