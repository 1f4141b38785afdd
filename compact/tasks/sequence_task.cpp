// SPDX-License-Identifier: Apache-2.0
#include "compact/tasks/sequence_task.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/base/text.h"
#include "compact/data/samples/split.h"
#include "compact/data/text/encoded_texts.h"
#include "compact/data/text/text_pair_dataset.h"
#include "compact/io/hf_encoder_config.h"
#include "compact/models/encoder.h"
#include "compact/models/encoders.h"
#include "compact/tasks/classifier_task.h"
#include "compact/tasks/head_classes.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/splits.h"
#include "compact/tasks/tokenizer_store.h"

namespace compact {
namespace {

void keep_first(LabelledTexts& texts, int64_t most) {
  const auto count = static_cast<size_t>(most);
  if (most == 0 || texts.first.size() <= count) return;
  texts.first.resize(count);
  if (!texts.second.empty()) texts.second.resize(count);
  texts.labels.resize(count);
}

uint64_t checksum_of(const LabelledTexts& texts) {
  uint64_t sum = 0;
  for (size_t i = 0; i < texts.first.size(); ++i) {
    const std::string& first = texts.first[i];
    sum = derive(sum, label_of(first.data(), first.size()));
    if (!texts.second.empty()) {
      sum = derive(sum, label_of(texts.second[i].data(), texts.second[i].size()));
    }
    sum = derive(sum, std::bit_cast<uint32_t>(texts.labels[i]));
  }
  return sum;
}

// The table's or the folder's, with the data's classes and the tokenizer's vocabulary.
EncoderConfig shape_of(const TrainConfig& c, const LabelledTexts* train,
                       const Tokenizer* tokenizer) {
  EncoderConfig shape;
  if (c.model.empty()) {
    shape = read_encoder_config(c.model_name_or_path);
  } else {
    shape = encoder_named(c.model).config;
    if (tokenizer) shape.vocab_size = tokenizer->vocabulary();
  }
  if (train) {
    shape.regression = train->class_names.empty();
    shape.labels = shape.regression ? std::vector<std::string>{"LABEL_0"} : train->class_names;
  } else if (shape.labels.empty()) {
    shape.labels = {"LABEL_0", "LABEL_1"};
  }
  if (c.dropout >= 0) {
    shape.hidden_dropout = shape.attention_dropout = c.dropout;
    shape.classifier_dropout = -1;
  }
  COMPACT_CHECK(c.max_seq_length <= shape.max_length(), "--max_seq_length ", c.max_seq_length,
                " is longer than the model's ", shape.max_length(), " positions");
  if (tokenizer) {
    COMPACT_CHECK(tokenizer->vocabulary() <= shape.vocab_size, "the tokenizer ", tokenizer->spec(),
                  " has ", tokenizer->vocabulary(), " tokens, the model only ", shape.vocab_size);
  }
  return shape;
}

// `own`: the vocabulary is the model's, no tokenizer's.
void set_network(const TrainConfig& c, const EncoderConfig& shape, bool own, Task& task) {
  task.config = encoder_config_to_json(shape, c.dtype);
  task.unit = "sentences";
  task.lengths_vary = true;
  task.network_text =
      cat("vocabulary ", format_count(shape.vocab_size), own ? " (the model's own), " : ", ",
          shape.regression ? std::string("one value") : cat(shape.outputs(), " classes"));
  task.network = classifier_of<Encoder>(shape);
  // The first block may have a dropout that the others have not.
  EncoderConfig two = shape;
  two.num_hidden_layers = std::min<int64_t>(2, shape.num_hidden_layers);
  two.vocab_size = std::min<int64_t>(shape.vocab_size, shape.pad_token_id + 64);
  task.smallest = classifier_of<Encoder>(two);
}

// Of a model that is evaluated, not trained.
std::optional<EncoderConfig> trained_shape(const TrainConfig& c) {
  if (!c.only_evaluates) return {};
  return read_encoder_config(c.model_name_or_path);
}

// The most that a batch can be: samples as long as the longest there is.
void set_inputs(int64_t length, bool regression, Task& task) {
  task.inputs = [=](const TrainConfig&, at::Device device, int64_t batch) {
    const auto whole = at::TensorOptions().device(device).dtype(at::kLong);
    return StepInputs{{at::ones({batch, length}, whole), at::zeros({batch, length}, whole),
                       at::full({batch}, length, whole)},
                      at::zeros({batch}, regression ? whole.dtype(at::kFloat) : whole)};
  };
}

}  // namespace

std::vector<std::string> known_classes(const TrainConfig& c) {
  const std::optional<EncoderConfig> shape = trained_shape(c);
  return !shape || shape->regression ? std::vector<std::string>{} : shape->labels;
}

bool knows_values(const TrainConfig& c) {
  const std::optional<EncoderConfig> shape = trained_shape(c);
  return shape && shape->regression;
}

Task open_sequences(const TrainConfig& c, SequenceTexts texts, std::vector<std::string> metrics,
                    std::vector<std::string>& warnings) {
  Task task;
  task.metrics = std::move(metrics);
  const bool data = texts.train || texts.validation || texts.test;
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_of(c, data);
  if (texts.train) keep_first(*texts.train, c.max_train_samples);
  take_numbers_of_head(c, texts, warnings);
  task.positive_class = static_cast<double>(texts.positive.value_or(1));
  const EncoderConfig shape = shape_of(c, texts.train ? &*texts.train : nullptr, tokenizer.get());
  set_network(c, shape, !tokenizer, task);
  set_inputs(c.max_seq_length, shape.regression, task);
  if (!tokenizer) return task;
  task.files = tokenizer_files(*tokenizer);
  const std::optional<SequenceFormat> format = tokenizer->sequence_format();
  COMPACT_CHECK(
      format, "the tokenizer ", tokenizer->spec(),
      " does not say how sentences begin and end: --tokenizer must name one that does, as "
      "wordpiece:file=vocab.txt or bpe:file=tokenizer.json");
  COMPACT_CHECK(!format->second_type || shape.type_vocab_size > 1, "the tokenizer ",
                tokenizer->spec(), " gives second sentences a type of their own, the model has ",
                "one type");
  if (!data) return task;
  const uint64_t key = key_of(c, RandomUse::kData);
  const Padding padding{.pad = format->pad, .max_length = c.max_seq_length};
  const auto encoded = [&](const LabelledTexts& of, const char* what) {
    auto e = std::make_shared<EncodedTexts>(encode_texts(
        of, [&](std::string_view s) { return tokenizer->encode(s); }, *format, c.max_seq_length));
    for (const std::string& line : of.warnings) warnings.push_back(line);
    if (e->cut > 0) {
      warnings.push_back(cat(e->cut, " of ", format_count(static_cast<int64_t>(e->ids.size())), " ",
                             what, " texts were cut to --max_seq_length ", c.max_seq_length));
    }
    return std::shared_ptr<const EncodedTexts>(e);
  };
  const auto target = shape.regression ? TextTarget::kValue : TextTarget::kClass;
  const auto part_of = [&](const std::shared_ptr<const EncodedTexts>& e, std::vector<int64_t> of) {
    return std::make_unique<TextPairDataset>(e, std::move(of), padding, target, key);
  };
  const auto whole = [&](const std::optional<LabelledTexts>& of, const char* what) {
    if (!of) return std::unique_ptr<TextPairDataset>();
    const auto e = encoded(*of, what);
    return part_of(e, all_samples(static_cast<int64_t>(e->ids.size())));
  };
  task.validation = whole(texts.validation, "validation");
  task.test = whole(texts.test, "test");
  if (!texts.train) return task;
  task.checksum = derive(checksum_of(*texts.train), tokenizer->hash());
  const auto e = encoded(*texts.train, "training");
  int64_t length = 0;
  const auto part_of_it = [&](std::vector<int64_t> of, bool training) {
    auto part = part_of(e, std::move(of));
    if (training) length = part->longest_row();
    return part;
  };
  split_samples(c, static_cast<int64_t>(e->ids.size()), part_of_it, task, warnings);
  set_inputs(length, shape.regression, task);
  task.data_text =
      cat(format_count(task.train->size()), texts.train->second.empty() ? " sentences" : " pairs",
          " of up to ", length, " tokens", held_out_text(task));
  return task;
}

void check_sequence_settings(const TrainConfig& c) {
  if (!c.model.empty()) encoder_named(c.model);
}

}  // namespace compact
