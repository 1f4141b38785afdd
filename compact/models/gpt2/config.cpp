// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "compact/base/check.h"
#include "compact/models/config_rows.h"
#include "compact/models/gpt2/gpt2.h"

namespace compact {

void keys_of(ConfigRows& rows, Gpt2Config& c) {
  rows.model_type({"gpt2"});
  rows.put("architectures", {"GPT2LMHeadModel"});
  rows.gelu("activation_function", c.gelu_tanh);
  rows.never({"add_cross_attention"});
  rows.refuse("gpt2", nullptr,
              {"sliding_window", "rope_scaling", "rope_parameters", "num_experts"});
  rows.refuse("gpt2", true, {"is_causal"});
  rows.given.refuse_quantized();
  // By its own name, or by the one that transformers has for all models.
  const auto size = [&](const char* key, const char* other, int64_t& value, int64_t most) {
    value = rows.given.integer(key, rows.given.integer(other, value));
    const int64_t also = rows.given.integer(other, value);
    COMPACT_CHECK(also == value, rows.where(), ": ", key, " and ", other, " must agree, are ",
                  value, " and ", also);
    rows.size(key, value, ConfigRows::kOptional, most);
  };
  size("n_embd", "hidden_size", c.n_embd, ConfigRows::kMostSize);
  size("n_layer", "num_hidden_layers", c.n_layer, ConfigRows::kMostLayers);
  size("n_head", "num_attention_heads", c.n_head, ConfigRows::kMostSize);
  if (rows.reads()) c.n_inner = 4 * std::min<int64_t>(c.n_embd, 1 << 30);
  rows.size("n_inner", c.n_inner);
  if (c.n_inner == 4 * c.n_embd) rows.put("n_inner", nullptr);
  rows.size("vocab_size", c.vocab_size);
  size("n_positions", "max_position_embeddings", c.n_positions, ConfigRows::kMostSize);
  rows.put("n_ctx", c.n_positions);
  COMPACT_CHECK(c.n_embd % c.n_head == 0, rows.where(),
                ": n_embd must be a multiple of n_head, is ", c.n_embd, " with ", c.n_head,
                " heads");
  rows.dropout("embd_pdrop", c.embd_pdrop);
  rows.dropout("resid_pdrop", c.resid_pdrop);
  rows.dropout("attn_pdrop", c.attn_pdrop);
  rows.positive("layer_norm_epsilon", c.layer_norm_epsilon);
  rows.positive("initializer_range", c.initializer_range);
  rows.flag("scale_attn_weights", c.scale_attn_weights);
  rows.flag("scale_attn_by_inverse_layer_idx", c.scale_attn_by_inverse_layer_idx);
  rows.flag("tie_word_embeddings", c.tie_word_embeddings);
  rows.token("bos_token_id", c.bos_token_id);
  rows.tokens("eos_token_id", c.eos_token_ids);
  // transformers writes GPT-2's own id into smaller models too, whose vocabularies lack it.
  const int64_t own = *Gpt2Config().bos_token_id;
  if (rows.reads() && c.vocab_size <= own) {
    if (c.bos_token_id == own) c.bos_token_id.reset();
    std::erase(c.eos_token_ids, own);
  }
  check_tokens(c.tokens(), rows.where());
  rows.put("use_cache", true);
  rows.put_dtypes();
}

}  // namespace compact
