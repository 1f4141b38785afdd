// SPDX-License-Identifier: Apache-2.0
#include "compact/models/encoder/config.h"

#include "compact/base/check.h"
#include "compact/models/config_rows.h"
#include "compact/models/labels.h"

namespace compact {

void keys_of(ConfigRows& rows, EncoderConfig& c) {
  const bool roberta =
      rows.model_type({"bert", "roberta"}, c.kind == EncoderKind::kRoberta ? 1 : 0) > 0;
  c.kind = roberta ? EncoderKind::kRoberta : EncoderKind::kBert;
  rows.put("architectures",
           {roberta ? "RobertaForSequenceClassification" : "BertForSequenceClassification"});
  rows.gelu("hidden_act", c.gelu_tanh);
  rows.choice("position_embedding_type", {"absolute"});
  rows.never({"is_decoder", "add_cross_attention"});
  rows.given.refuse_quantized();
  rows.size("hidden_size", c.hidden_size, ConfigRows::kRequired);
  rows.size("intermediate_size", c.intermediate_size, ConfigRows::kRequired);
  rows.layers("num_hidden_layers", c.num_hidden_layers, ConfigRows::kRequired);
  rows.size("num_attention_heads", c.num_attention_heads, ConfigRows::kRequired);
  rows.size("vocab_size", c.vocab_size, ConfigRows::kRequired);
  rows.size("max_position_embeddings", c.max_position_embeddings);
  rows.size("type_vocab_size", c.type_vocab_size);
  check_heads(c.hidden_size, c.num_attention_heads, rows.where());
  if (rows.reads()) c.pad_token_id = rows.given.integer("pad_token_id", roberta ? 1 : 0);
  rows.put("pad_token_id", c.pad_token_id);
  check_tokens({.vocabulary = c.vocab_size, .bos = {}, .eos = {}, .pad = c.pad_token_id},
               rows.where());
  COMPACT_CHECK(c.max_length() >= 1, rows.where(), ": max_position_embeddings must be above ",
                c.first_position(), ", is ", c.max_position_embeddings);
  rows.dropout("hidden_dropout_prob", c.hidden_dropout);
  rows.dropout("attention_probs_dropout_prob", c.attention_dropout);
  rows.put("classifier_dropout", nullptr);
  c.classifier_dropout = rows.given.number("classifier_dropout", c.classifier_dropout);
  if (c.classifier_dropout < 0) {
    c.classifier_dropout = -1;
  } else {
    rows.dropout("classifier_dropout", c.classifier_dropout);
  }
  rows.positive("layer_norm_eps", c.layer_norm_eps);
  rows.positive("initializer_range", c.initializer_range);
  label_rows(rows, c.labels);
  if (rows.reads()) c.regression = c.outputs() == 1;
  c.regression = rows.choice("problem_type", {"regression", "single_label_classification"},
                             c.regression ? 0 : 1) == 0;
  COMPACT_CHECK(!c.regression || c.outputs() == 1, rows.where(),
                ": a regression has one label, not ", c.outputs());
  rows.put("torch_dtype", rows.dtype());
}

}  // namespace compact
