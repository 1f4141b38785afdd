// SPDX-License-Identifier: Apache-2.0
// The shape of an encoder with its head, in the words of Hugging Face's `config.json` of model_type
// `bert` and `roberta`. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace compact {

class ConfigRows;

enum class EncoderKind : uint8_t { kBert, kRoberta };

struct EncoderConfig {
  EncoderKind kind = EncoderKind::kBert;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t vocab_size = 0;
  // RoBERTa never uses the first pad_token_id of them; the next one is what padding reads.
  int64_t max_position_embeddings = 512;
  int64_t type_vocab_size = 2;
  int64_t pad_token_id = 0;
  double layer_norm_eps = 1e-12;
  bool gelu_tanh = false;  // hidden_act gelu_new
  double hidden_dropout = 0.1, attention_dropout = 0.1;
  double classifier_dropout = -1;  // below 0: hidden_dropout
  double initializer_range = 0.02;
  std::vector<std::string> labels;  // of the classes, in order; one: regression
  bool regression = false;

  // The place of a sequence's first token among positions; the longest sequence there can be.
  int64_t first_position() const { return kind == EncoderKind::kRoberta ? pad_token_id + 1 : 0; }
  int64_t max_length() const { return max_position_embeddings - first_position(); }
  int64_t outputs() const { return static_cast<int64_t>(labels.size()); }

  bool operator==(const EncoderConfig&) const = default;
};

void keys_of(ConfigRows& rows, EncoderConfig& c);  // see config_rows.h

}  // namespace compact
