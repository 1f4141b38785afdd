// SPDX-License-Identifier: Apache-2.0
#include "compact/models/encoder/config_json.h"

#include <nlohmann/json.hpp>
#include <string>

#include "compact/base/check.h"
#include "compact/io/config_keys.h"
#include "compact/models/labels.h"

namespace compact {
namespace {

using nlohmann::json;

constexpr const char *kRegression = "regression", *kClasses = "single_label_classification";

void refuse_unsupported_encoder(const ConfigKeys& keys) {
  const std::string positions = keys.text("position_embedding_type", "absolute");
  COMPACT_CHECK(positions == "absolute", keys.where(),
                ": position_embedding_type must be absolute, is `", positions, "`");
  for (const char* key : {"is_decoder", "add_cross_attention"}) {
    COMPACT_CHECK(!keys.flag(key, false), keys.where(), ": ", key, " must be false, is true");
  }
  keys.refuse_quantized();
}

}  // namespace

EncoderConfig encoder_config_from_json(const json& object, std::string_view where) {
  const ConfigKeys keys(object, std::string(where));
  const std::string type = keys.text("model_type", ""), act = keys.text("hidden_act", "gelu");
  COMPACT_CHECK(type == "bert" || type == "roberta", where,
                ": model_type must be bert or roberta, is `", type, "`");
  const bool tanh = act == "gelu_new" || act == "gelu_pytorch_tanh";
  COMPACT_CHECK(tanh || act == "gelu", where,
                ": hidden_act must be gelu, gelu_new or gelu_pytorch_tanh, is `", act, "`");
  refuse_unsupported_encoder(keys);
  EncoderConfig c;
  c.kind = type == "bert" ? EncoderKind::kBert : EncoderKind::kRoberta;
  c.gelu_tanh = tanh;
  c.hidden_size = keys.required_integer("hidden_size");
  c.intermediate_size = keys.required_integer("intermediate_size");
  c.num_hidden_layers = keys.required_integer("num_hidden_layers");
  c.num_attention_heads = keys.required_integer("num_attention_heads");
  c.vocab_size = keys.required_integer("vocab_size");
  c.max_position_embeddings = keys.integer("max_position_embeddings", c.max_position_embeddings);
  c.type_vocab_size = keys.integer("type_vocab_size", c.type_vocab_size);
  c.pad_token_id = keys.integer("pad_token_id", c.kind == EncoderKind::kBert ? 0 : 1);
  c.layer_norm_eps = keys.number("layer_norm_eps", c.layer_norm_eps);
  c.hidden_dropout = keys.number("hidden_dropout_prob", c.hidden_dropout);
  c.attention_dropout = keys.number("attention_probs_dropout_prob", c.attention_dropout);
  c.classifier_dropout = keys.number("classifier_dropout", c.classifier_dropout);
  c.initializer_range = keys.number("initializer_range", c.initializer_range);
  c.labels = read_labels(keys);
  const std::string problem = keys.text("problem_type", c.outputs() == 1 ? kRegression : kClasses);
  COMPACT_CHECK(problem == kRegression || problem == kClasses, where, ": problem_type must be ",
                kRegression, " or ", kClasses, ", is `", problem, "`");
  c.regression = problem == kRegression;
  check_encoder_config(c, where);
  return c;
}

json encoder_config_to_json(const EncoderConfig& c, const std::string& dtype) {
  check_encoder_config(c, "config");
  const bool bert = c.kind == EncoderKind::kBert;
  json object = {
      {"architectures",
       {bert ? "BertForSequenceClassification" : "RobertaForSequenceClassification"}},
      {"model_type", bert ? "bert" : "roberta"},
      {"hidden_act", c.gelu_tanh ? "gelu_new" : "gelu"},
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"num_hidden_layers", c.num_hidden_layers},
      {"num_attention_heads", c.num_attention_heads},
      {"vocab_size", c.vocab_size},
      {"max_position_embeddings", c.max_position_embeddings},
      {"type_vocab_size", c.type_vocab_size},
      {"pad_token_id", c.pad_token_id},
      {"position_embedding_type", "absolute"},
      {"layer_norm_eps", c.layer_norm_eps},
      {"hidden_dropout_prob", c.hidden_dropout},
      {"attention_probs_dropout_prob", c.attention_dropout},
      {"classifier_dropout", c.classifier_dropout < 0 ? json() : json(c.classifier_dropout)},
      {"initializer_range", c.initializer_range},
      {"problem_type", c.regression ? kRegression : kClasses},
      {"torch_dtype", dtype}};
  write_labels(c.labels, object);
  return object;
}

}  // namespace compact
