// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/base/model_numbers.h"
#include "compact/io/config_keys.h"
#include "compact/models/gpt2/gpt2.h"

namespace compact {
namespace {

using nlohmann::json;

// A size by its own name, or by the one that transformers has for all models.
int64_t read_size_of(const ConfigKeys& keys, const char* key, const char* other, int64_t usual) {
  const int64_t size = keys.integer(key, keys.integer(other, usual));
  COMPACT_CHECK(keys.integer(other, size) == size, keys.where(), ": ", key, " and ", other,
                " must agree, are ", size, " and ", keys.integer(other, size));
  return size;
}

}  // namespace

void check_gpt2_config(const Gpt2Config& c, std::string_view where) {
  check_sizes({{"n_embd", c.n_embd},
               {"n_layer", c.n_layer},
               {"n_head", c.n_head},
               {"n_inner", c.n_inner},
               {"vocab_size", c.vocab_size},
               {"n_positions", c.n_positions}},
              where);
  COMPACT_CHECK(c.n_embd % c.n_head == 0, where, ": n_embd must be a multiple of n_head, is ",
                c.n_embd, " with ", c.n_head, " heads");
  check_dropouts(
      {{"embd_pdrop", c.embd_pdrop}, {"resid_pdrop", c.resid_pdrop}, {"attn_pdrop", c.attn_pdrop}},
      where);
  check_positive(
      {{"layer_norm_epsilon", c.layer_norm_epsilon}, {"initializer_range", c.initializer_range}},
      where);
  if (c.bos_token_id) check_token("bos_token_id", *c.bos_token_id, c.vocab_size, where);
  for (const int64_t id : c.eos_token_ids) check_token("eos_token_id", id, c.vocab_size, where);
}

Gpt2Config gpt2_config_from_json(const json& object, std::string_view where) {
  const ConfigKeys keys(object, std::string(where));
  const std::string type = keys.text("model_type", "");
  COMPACT_CHECK(type == "gpt2", where, ": model_type must be gpt2, is `", type, "`");
  const std::string act = keys.text("activation_function", "gelu_new");
  const bool tanh = act == "gelu_new" || act == "gelu_pytorch_tanh";
  COMPACT_CHECK(tanh || act == "gelu", where,
                ": activation_function must be gelu, gelu_new or gelu_pytorch_tanh, is `", act,
                "`");
  COMPACT_CHECK(!keys.flag("add_cross_attention", false), where,
                ": add_cross_attention must be false, is true");
  for (const char* key : {"sliding_window", "rope_scaling", "rope_parameters", "num_experts"}) {
    COMPACT_CHECK(!keys.find(key), where, ": ", key, " must be null with model_type gpt2, is ",
                  keys.find(key)->dump());
  }
  keys.refuse_quantized();
  Gpt2Config c;
  c.n_embd = read_size_of(keys, "n_embd", "hidden_size", 768);
  c.n_layer = read_size_of(keys, "n_layer", "num_hidden_layers", 12);
  c.n_head = read_size_of(keys, "n_head", "num_attention_heads", 12);
  c.n_inner = keys.integer("n_inner", 4 * std::min<int64_t>(c.n_embd, 1 << 30));
  c.vocab_size = keys.integer("vocab_size", c.vocab_size);
  c.n_positions = read_size_of(keys, "n_positions", "max_position_embeddings", c.n_positions);
  c.gelu_tanh = tanh;
  c.layer_norm_epsilon = keys.number("layer_norm_epsilon", c.layer_norm_epsilon);
  c.embd_pdrop = keys.number("embd_pdrop", c.embd_pdrop);
  c.resid_pdrop = keys.number("resid_pdrop", c.resid_pdrop);
  c.attn_pdrop = keys.number("attn_pdrop", c.attn_pdrop);
  c.scale_attn_weights = keys.flag("scale_attn_weights", true);
  c.scale_attn_by_inverse_layer_idx = keys.flag("scale_attn_by_inverse_layer_idx", false);
  c.tie_word_embeddings = keys.flag("tie_word_embeddings", true);
  c.initializer_range = keys.number("initializer_range", c.initializer_range);
  c.bos_token_id = keys.token("bos_token_id", c.bos_token_id);
  c.eos_token_ids = keys.tokens("eos_token_id", c.eos_token_ids);
  // The class writes GPT-2's own into smaller models too, where they are none.
  const int64_t own = *Gpt2Config().bos_token_id;
  if (c.vocab_size <= own) {
    if (c.bos_token_id == own) c.bos_token_id.reset();
    std::erase(c.eos_token_ids, own);
  }
  check_gpt2_config(c, where);
  return c;
}

json gpt2_config_to_json(const Gpt2Config& c, const std::string& dtype) {
  check_gpt2_config(c, "config");
  return {{"architectures", json::array({"GPT2LMHeadModel"})},
          {"model_type", "gpt2"},
          {"n_embd", c.n_embd},
          {"n_layer", c.n_layer},
          {"n_head", c.n_head},
          {"n_inner", c.n_inner == 4 * c.n_embd ? json() : json(c.n_inner)},
          {"vocab_size", c.vocab_size},
          {"n_positions", c.n_positions},
          {"n_ctx", c.n_positions},
          {"activation_function", c.gelu_tanh ? "gelu_new" : "gelu"},
          {"layer_norm_epsilon", c.layer_norm_epsilon},
          {"embd_pdrop", c.embd_pdrop},
          {"resid_pdrop", c.resid_pdrop},
          {"attn_pdrop", c.attn_pdrop},
          {"scale_attn_weights", c.scale_attn_weights},
          {"scale_attn_by_inverse_layer_idx", c.scale_attn_by_inverse_layer_idx},
          {"tie_word_embeddings", c.tie_word_embeddings},
          {"initializer_range", c.initializer_range},
          {"bos_token_id", json_of(c.bos_token_id)},
          {"eos_token_id", json_of(c.eos_token_ids)},
          {"use_cache", true},
          {"torch_dtype", dtype},
          {"dtype", dtype}};
}

}  // namespace compact
