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
#include "compact/io/json_file.h"
#include "compact/tasks/head_classes.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/splits.h"
#include "compact/tasks/task_model.h"

namespace compact {
namespace {

constexpr const char* kPairs = "sentence_pairs";  // in config.json

void keep_some(LabelledTexts& texts, int64_t most) {
  const std::vector<int64_t> kept = some_samples(static_cast<int64_t>(texts.first.size()), most);
  const auto keep = [&](auto& all) {
    if (all.empty()) return;
    for (size_t i = 0; i < kept.size(); ++i) std::swap(all[i], all[static_cast<size_t>(kept[i])]);
    all.resize(kept.size());
  };
  keep(texts.first);
  keep(texts.second);
  keep(texts.labels);
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

// Fits the table's or the folder's model to the data's classes and the tokenizer's vocabulary.
ModelShape fit_model(ModelConfig& model, const TrainConfig& c, const LabelledTexts* train,
                     const Tokenizer* tokenizer) {
  ModelShape shape = model.shape();
  if (!c.model.empty() && tokenizer) shape.tokens.vocabulary = tokenizer->vocabulary();
  if (train) {
    shape.regression = train->class_names.empty();
    shape.labels = shape.regression ? std::vector<std::string>{"LABEL_0"} : train->class_names;
  } else if (shape.labels.empty()) {
    shape.labels = {"LABEL_0", "LABEL_1"};
  }
  shape.dropout = c.dropout;
  check_length("--max_seq_length", c.max_seq_length, shape);
  if (tokenizer) {
    const int64_t vocabulary = shape.tokens.vocabulary;
    COMPACT_CHECK(tokenizer->vocabulary() <= vocabulary, "the tokenizer ", tokenizer->spec(),
                  " has ", tokenizer->vocabulary(), " tokens, the model only ", vocabulary);
  }
  model.fit(shape);
  return model.shape();
}

// The largest micro-batch: all samples of the greatest length.
void set_inputs(int64_t length, bool regression, Task& task) {
  task.inputs = [=](const TrainConfig&, at::Device device, int64_t batch) {
    const auto whole = at::TensorOptions().device(device).dtype(at::kLong);
    return StepInputs{{at::ones({batch, length}, whole), at::zeros({batch, length}, whole),
                       at::full({batch}, length, whole)},
                      at::zeros({batch}, regression ? whole.dtype(at::kFloat) : whole)};
  };
}

}  // namespace

std::optional<bool> trained_on_pairs(const TrainConfig& c) {
  if (c.model_name_or_path.empty()) return {};
  const nlohmann::json config = read_json(c.model_name_or_path + "/config.json");
  const auto pairs = config.find(kPairs);
  if (pairs == config.end() || !pairs->is_boolean()) return {};
  return pairs->get<bool>();
}

Task open_sequences(const TrainConfig& c, const Opening& opening, SequenceTexts texts,
                    std::vector<std::string> metrics, std::vector<std::string>& warnings) {
  Task task;
  task.metrics = std::move(metrics);
  const bool data = texts.train || texts.validation || texts.test;
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_of(c, data);
  if (texts.train) keep_some(*texts.train, c.max_train_samples);
  take_numbers_of_head(c, opening, texts, warnings);
  task.positive_class = static_cast<double>(texts.positive.value_or(1));
  const std::unique_ptr<ModelConfig> model = model_of(c);
  const ModelShape shape =
      fit_model(*model, c, texts.train ? &*texts.train : nullptr, tokenizer.get());
  set_model(c, *model, task);
  if (texts.train) task.config[kPairs] = !texts.train->second.empty();
  if (shape.regression && c.label_smoothing_factor > 0) {
    warnings.push_back("--label_smoothing_factor takes no effect: targets are values");
  }
  if (const auto positive = static_cast<size_t>(task.positive_class);
      !shape.regression && positive < shape.labels.size()) {
    task.positive_name = shape.labels[positive];
  }
  task.unit = "sentences";
  task.lengths_vary = true;
  task.network_text = cat("vocabulary ", format_count(shape.tokens.vocabulary),
                          tokenizer ? ", " : " (the model's own), ",
                          shape.regression ? "one value" : cat(shape.classes, " classes"));
  set_inputs(c.max_seq_length, shape.regression, task);
  if (!tokenizer) return task;
  set_tokenizer(c, opening, *tokenizer, task, warnings);
  const std::optional<SequenceFormat> format = tokenizer->sequence_format();
  COMPACT_CHECK(
      format, "the tokenizer ", tokenizer->spec(),
      " does not say how sentences begin and end: --tokenizer must name one that does, as "
      "wordpiece:file=vocab.txt or bpe:file=tokenizer.json");
  COMPACT_CHECK(!format->second_type || shape.token_types > 1, "the tokenizer ", tokenizer->spec(),
                " gives second sentences token type 1, the model has type 0 alone");
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

}  // namespace compact
