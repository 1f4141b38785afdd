// SPDX-License-Identifier: Apache-2.0
#include "compact/models/llama/config.h"

#include <algorithm>
#include <limits>

#include "compact/base/check.h"
#include "compact/models/config_rows.h"
#include "compact/models/llama/model_types.h"

namespace compact {
namespace {

using nlohmann::json;

constexpr const char *kFull = "full_attention", *kSliding = "sliding_attention";

// A setting that changes what a decoder computes and is none of this family's, unless it has the
// value that does nothing.
void refuse_others(ConfigRows& rows, const DecoderFamily& family) {
  rows.choice("hidden_act", {"silu"});
  for (const char* key : {"resid_pdrop", "embd_pdrop", "hidden_dropout", "dropout"}) {
    const double dropout = rows.given.number(key, 0);
    COMPACT_CHECK(dropout == 0, rows.where(), ": ", key, " must be 0, is ", dropout);
  }
  const auto refuse = [&](const json& harmless, ConfigRows::Texts keys) {
    rows.refuse(family.type, harmless, keys);
  };
  if (!family.biases) refuse(false, {"attention_bias"});
  if (!family.mlp_biases) refuse(false, {"mlp_bias"});
  if (!family.config.block.qkv_bias) refuse(false, {"qkv_bias"});
  if (family.window != AttentionWindow::kSwitched) refuse(false, {"use_sliding_window"});
  if (family.window == AttentionWindow::kNone) refuse(nullptr, {"sliding_window"});
  refuse(false, {"lm_head_bias", "use_bias", "rope_interleaved", "qk_norm", "use_qk_norm",
                 "use_mrope", "parallel_attn", "add_cross_attention", "scale_embedding",
                 "use_bidirectional_attention"});
  if (!family.multipliers) {
    refuse(nullptr, {"attention_multiplier"});
    refuse(1, {"embedding_multiplier", "residual_multiplier", "logits_scaling"});
  }
  if (!family.some_turn) refuse(nullptr, {"no_rope_layers"});
  refuse(nullptr,
         {"attn_logit_softcapping", "final_logit_softcapping", "clip_qkv", "query_pre_attn_scalar",
          "num_local_experts", "num_experts", "attention_chunk_size"});
  refuse("default", {"rope_type", "type"});
  refuse(true, {"is_causal"});
  const json* types = rows.given.find("layer_types");
  if (family.window != AttentionWindow::kSwitched && types) {
    for (const json& type : *types) {
      COMPACT_CHECK(type == kFull, rows.where(), ": layer_types must be ", kFull,
                    " with model_type ", family.type, ", has ", type.dump());
    }
    // transformers reads such a Mistral as a Ministral, whose full layers have no window.
    if (std::string_view(family.type) == "mistral") refuse(nullptr, {"sliding_window"});
  }
  rows.given.refuse_quantized(/*but_bitsandbytes=*/true);
}

// Sets missing keys whose defaults depend on other keys: heads of keys and values, and their width.
// Drops token ids that are not below the vocabulary.
void set_defaults(const ConfigKeys& keys, LlamaConfig& c) {
  BlockShape& b = c.block;
  if (keys.has("num_key_value_heads") || b.kv_heads == 0) b.kv_heads = b.heads;
  if (b.head_dim == 0) b.head_dim = b.hidden / b.heads;
  if (c.bos_token_id >= c.vocab_size) c.bos_token_id.reset();
  if (c.pad_token_id >= c.vocab_size) c.pad_token_id.reset();
  std::erase_if(c.eos_token_ids, [&](int64_t id) { return id >= c.vocab_size; });
}

// Which layers turn queries and keys: 1 in no_rope_layers, or all but each
// no_rope_layer_interval-th.
std::vector<bool> read_rope_layers(const ConfigKeys& keys, int64_t layers) {
  std::vector<bool> turn;
  if (const json* list = keys.find("no_rope_layers")) {
    COMPACT_CHECK(list->is_array(), keys.where(), ": no_rope_layers must be a list, is ",
                  list->dump());
    COMPACT_CHECK(static_cast<int64_t>(list->size()) >= layers, keys.where(),
                  ": no_rope_layers must have an entry of each of ", layers, " layers, has ",
                  list->size());
    for (const json& one : *list) {
      COMPACT_CHECK(one == 0 || one == 1, keys.where(),
                    ": no_rope_layers must have 1 where a layer "
                    "has rotary positions and 0 where it has none, has ",
                    one.dump());
      if (static_cast<int64_t>(turn.size()) < layers) turn.push_back(one == 1);
    }
  } else {
    const int64_t interval = keys.integer("no_rope_layer_interval", 4);
    COMPACT_CHECK(interval >= 1, keys.where(), ": no_rope_layer_interval must be at least 1, is ",
                  interval);
    for (int64_t i = 0; i < layers; ++i) turn.push_back((i + 1) % interval != 0);
  }
  return turn;
}

// Layers whose tokens attend no further than the window.
std::vector<bool> read_window_layers(const ConfigKeys& keys, const DecoderFamily& family,
                                     const LlamaConfig& c) {
  std::vector<bool> sliding;
  if (const json* types = keys.find("layer_types")) {
    COMPACT_CHECK(types->is_array() && static_cast<int64_t>(types->size()) == c.num_hidden_layers,
                  keys.where(), ": layer_types must be a list of ", c.num_hidden_layers,
                  " entries, one of each layer, is ", types->dump());
    for (const json& type : *types) {
      COMPACT_CHECK(type == kFull || type == kSliding, keys.where(), ": layer_types must be ",
                    kFull, " or ", kSliding, ", has ", type.dump());
      sliding.push_back(type == kSliding);
    }
    return sliding;
  }
  const int64_t first = keys.integer("max_window_layers", family.window_layers);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    sliding.push_back(c.sliding_window && (family.window_layers > 0 ? i >= first : !c.turns(i)));
  }
  return sliding;
}

void read_window(const ConfigKeys& keys, const DecoderFamily& family, LlamaConfig& c) {
  const bool always = family.window == AttentionWindow::kAlways;
  if (always || keys.flag("use_sliding_window", false)) {
    c.sliding_window = keys.token("sliding_window", family.window_size);
  }
  if (always) return;
  c.sliding_layers = read_window_layers(keys, family, c);
  const bool any = std::ranges::find(c.sliding_layers, true) != c.sliding_layers.end();
  COMPACT_CHECK(!any || c.sliding_window, keys.where(),
                ": layer_types has sliding_attention, but use_sliding_window with sliding_window "
                "does not say how far");
  if (!any) c.sliding_window.reset(), c.sliding_layers.clear();
}

void check_layers(const char* key, const std::vector<bool>& list, const ConfigRows& rows,
                  const LlamaConfig& c) {
  COMPACT_CHECK(list.empty() || std::ssize(list) == c.num_hidden_layers, rows.where(), ": ", key,
                " must have ", c.num_hidden_layers, " entries, one of each layer, has ",
                list.size());
}

void window_rows(ConfigRows& rows, const DecoderFamily& family, LlamaConfig& c) {
  const bool none = family.window == AttentionWindow::kNone;
  if (rows.reads() && !none) read_window(rows.given, family, c);
  if (!c.sliding_window) c.sliding_layers.clear();
  rows.put("sliding_window", nullptr);
  if (c.sliding_window) rows.size("sliding_window", *c.sliding_window);
  if (none) rows.leave_out("sliding_window");
  check_layers("layer_types", c.sliding_layers, rows, c);
  if (family.window != AttentionWindow::kSwitched) {
    if (std::ranges::find(c.sliding_layers, false) == c.sliding_layers.end()) {
      c.sliding_layers.clear();
    }
    return;
  }
  std::vector<bool> sliding = c.sliding_layers;
  if (sliding.empty()) {
    sliding.resize(static_cast<size_t>(c.num_hidden_layers), c.sliding_window.has_value());
  }
  const bool any = std::ranges::find(sliding, true) != sliding.end();
  c.sliding_layers = any ? sliding : std::vector<bool>();
  if (!any) c.sliding_window.reset(), rows.put("sliding_window", nullptr);
  rows.put("use_sliding_window", any);
  json types = json::array();
  for (const bool one : sliding) types.push_back(one ? kSliding : kFull);
  rows.put("layer_types", types);
  if (family.window_layers > 0) {
    rows.put("max_window_layers", std::ranges::find(sliding, true) - sliding.begin());
  }
}

void turn_rows(ConfigRows& rows, bool some, LlamaConfig& c) {
  if (rows.reads() && some) c.rope_layers = read_rope_layers(rows.given, c.num_hidden_layers);
  check_layers("no_rope_layers", c.rope_layers, rows, c);
  if (std::ranges::find(c.rope_layers, false) == c.rope_layers.end()) c.rope_layers.clear();
  if (!some) return;
  json turn = json::array();
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) turn.push_back(c.turns(i) ? 1 : 0);
  rows.put("no_rope_layers", turn);
}

void multiplier_rows(ConfigRows& rows, const DecoderFamily& family, LlamaConfig& c) {
  double attention = c.block.scale != 0 || family.multipliers ? c.block.scale : 1;
  rows.positive("embedding_multiplier", c.embedding_multiplier);
  rows.positive("residual_multiplier", c.block.residual);
  rows.positive("attention_multiplier", attention);
  rows.positive("logits_scaling", c.logits_scaling);
  if (family.multipliers) {
    c.block.scale = attention;
  } else {
    for (const char* key : {"embedding_multiplier", "residual_multiplier", "attention_multiplier",
                            "logits_scaling"}) {
      rows.leave_out(key);
    }
  }
}

// The type of the weights, which a file of them says too.
void check_dtype(const ConfigKeys& keys) {
  std::string type;
  for (const char* key : {"dtype", "torch_dtype"}) {
    std::string value = keys.text(key, "");
    if (value.starts_with("torch.")) value = value.substr(6);
    COMPACT_CHECK(type.empty() || value.empty() || type == value, keys.where(),
                  ": dtype and torch_dtype must agree, are `", type, "` and `", value, "`");
    if (!value.empty()) type = value;
  }
  COMPACT_CHECK(type.empty() || type == "float32" || type == "bfloat16" || type == "float16",
                keys.where(), ": torch_dtype must be float32, bfloat16 or float16, is `", type,
                "`");
}

}  // namespace

std::string difference(const LlamaConfig& c, const LlamaConfig& read) {
  if (c.block != read.block) return "block." + difference(c.block, read.block);
  if (c.rope != read.rope) return "rope";
  if (c.rope_layers != read.rope_layers) return "rope_layers";
  if (c.sliding_window != read.sliding_window) {
    return cat("sliding_window = ", c.sliding_window.value_or(0));
  }
  if (c.sliding_layers != read.sliding_layers) return "sliding_layers";
  if (c.embedding_multiplier != read.embedding_multiplier) {
    return cat("embedding_multiplier = ", c.embedding_multiplier);
  }
  return cat("logits_scaling = ", c.logits_scaling);
}

int64_t longest_sequence(const LlamaConfig& config) {
  int64_t longest = config.max_position_embeddings;
  if (config.rope.kind == RopeKind::kDynamic) {
    constexpr double kMost = std::numeric_limits<int32_t>::max();
    longest = static_cast<int64_t>(
        std::min(kMost, config.rope.factor.value_or(1) * static_cast<double>(longest)));
  }
  return longest;
}

void keys_of(ConfigRows& rows, LlamaConfig& c) {
  const DecoderFamily& family =
      decoder_family(rows.reads() ? rows.given.text("model_type", "") : c.model_type, rows.where());
  if (rows.reads()) c = family.config;
  c.model_type = family.type;
  BlockShape& b = c.block;
  rows.put("model_type", family.type);
  rows.put("architectures", {family.architecture});
  refuse_others(rows, family);
  rows.size("hidden_size", b.hidden, ConfigRows::kRequired);
  rows.size("intermediate_size", b.intermediate, ConfigRows::kRequired);
  rows.layers("num_hidden_layers", c.num_hidden_layers, ConfigRows::kRequired);
  rows.size("num_attention_heads", b.heads, ConfigRows::kRequired);
  rows.size("vocab_size", c.vocab_size, ConfigRows::kRequired);
  if (rows.reads()) set_defaults(rows.given, c);
  rows.size("num_key_value_heads", b.kv_heads);
  rows.size("head_dim", b.head_dim);
  const bool usual_width = b.head_dim * b.heads == b.hidden;
  if (!family.says_head_dim && usual_width) rows.leave_out("head_dim");
  rows.size("max_position_embeddings", c.max_position_embeddings);
  check_rotary_heads(b.hidden, b.heads, b.kv_heads, b.head_dim, rows.where());
  const BlockShape& always = family.config.block;
  COMPACT_CHECK(b.pre_norms == always.pre_norms && b.post_norms == always.post_norms &&
                    b.whole_norms == always.whole_norms,
                rows.where(), ": a block with norms as in another model_type than ", family.type);
  rows.positive("rms_norm_eps", b.eps);
  rows.positive("initializer_range", c.initializer_range);
  multiplier_rows(rows, family, c);
  rows.dropout("attention_dropout", b.attention_dropout);
  if (rows.reads()) c.rope = read_rope(rows.given, family.rope, c.max_position_embeddings);
  check_rope_config(c.rope, b.head_dim, rows.where());
  write_rope(c.rope, family.rope, rows.written());
  turn_rows(rows, family.some_turn, c);
  if (family.biases) {
    rows.flag("attention_bias", b.qkv_bias);
    if (rows.reads()) b.out_bias = b.qkv_bias;
  }
  if (family.mlp_biases) rows.flag("mlp_bias", b.mlp_bias);
  window_rows(rows, family, c);
  rows.flag("tie_word_embeddings", c.tie_word_embeddings);
  rows.token("bos_token_id", c.bos_token_id);
  rows.tokens("eos_token_id", c.eos_token_ids);
  rows.token("pad_token_id", c.pad_token_id);
  // It may be counted from the end, as in torch.
  if (rows.reads() && c.pad_token_id < 0 && c.pad_token_id >= -c.vocab_size) {
    *c.pad_token_id += c.vocab_size;
  }
  if (!family.config.pad_token_id && !c.pad_token_id) rows.leave_out("pad_token_id");
  check_tokens(c.tokens(), rows.where());
  if (c.model_type == "llama") rows.put("pretraining_tp", 1);
  check_dtype(rows.given);
  rows.put("use_cache", true);
  rows.put_dtypes();
}

}  // namespace compact
