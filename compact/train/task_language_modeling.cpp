// SPDX-License-Identifier: Apache-2.0
// Next-token prediction on text, by a LLaMA.
#include <ATen/ATen.h>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/block_dataset.h"
#include "compact/data/prepare.h"
#include "compact/io/hf_config.h"
#include "compact/models/llama.h"
#include "compact/models/models.h"
#include "compact/train/setup.h"
#include "compact/train/task.h"
#include "compact/train/tokenizer_store.h"

namespace compact {
namespace {

void check(const TrainConfig& c) {
  if (!c.model.empty()) model_named(c.model);
  constexpr int64_t kMostTokens = int64_t{1} << 32;
  COMPACT_CHECK(c.per_device_train_batch_size <= kMostTokens / std::min(c.block_size, kMostTokens),
                "--per_device_train_batch_size times --block_size must be at most 2^32 tokens, is ",
                c.per_device_train_batch_size, " x ", c.block_size);
  COMPACT_CHECK(c.test_file.empty(), "--test_file: language models have a --validation_file only");
}

// The model's shape: the table's or the folder's, with the tokenizer's vocabulary.
LlamaConfig shape_of(const TrainConfig& c, const Tokenizer* tokenizer) {
  LlamaConfig shape;
  if (c.model.empty()) {
    shape = read_llama_config(c.model_name_or_path);
    COMPACT_CHECK(!tokenizer || tokenizer->vocabulary() <= shape.vocab_size, "--tokenizer ",
                  tokenizer->spec(), " has ", tokenizer->vocabulary(), " tokens, the model of ",
                  c.model_name_or_path, " only ", shape.vocab_size);
  } else {
    shape = model_named(c.model).config;
    if (tokenizer) {
      shape.vocab_size = tokenizer->vocabulary();
      shape.eos_token_ids = {static_cast<int64_t>(tokenizer->end_of_text())};
    }
    shape.max_position_embeddings = std::max(shape.max_position_embeddings, c.block_size);
  }
  COMPACT_CHECK(c.block_size <= shape.max_position_embeddings, "--block_size ", c.block_size,
                " is longer than the model's max_position_embeddings ",
                shape.max_position_embeddings);
  shape.torch_dtype = c.dtype;
  return shape;
}

void open_data(const TrainConfig& c, const Tokenizer& tokenizer, const Progress& progress,
               std::vector<std::string>& warnings, Task& task) {
  const std::string cache = c.cache_dir.empty() ? default_cache_folder() : c.cache_dir;
  const auto open = [&](const std::vector<std::string>& inputs) {
    PrepareOptions options{.field = c.text_field, .progress = progress};
    const CachedTokens tokens = cached_token_file(inputs, tokenizer, cache, options);
    if (tokens.prepared.replaced > 0) {
      warnings.push_back(
          cat(inputs[0], ": ", tokens.prepared.replaced, " invalid UTF-8 sequences became U+FFFD"));
    }
    return std::make_shared<const TokenFile>(tokens.path);
  };
  const uint64_t key = key_of(c, RandomUse::kData);
  if (!c.validation_file.empty()) {
    task.validation = std::make_unique<BlockDataset>(open(c.validation_file), c.block_size, key);
  }
  if (c.train_file.empty()) return;
  const auto file = open(c.train_file);
  task.checksum = file->info().checksum;
  TokenRange train{0, file->count()};
  if (!c.validation_file.empty()) {
    if (c.validation_split != TrainConfig().validation_split) {
      warnings.push_back(cat("--validation_split takes no effect: there is a --validation_file"));
    }
  } else if (c.validation_split > 0) {
    const auto [first, last] = split_end(file->count(), c.validation_split);
    train = first;
    if (last.end - last.begin > c.block_size) {
      task.validation = std::make_unique<BlockDataset>(file, last, c.block_size, key);
    } else {
      warnings.push_back(cat("no validation: the part held out has ", last.end - last.begin,
                             " tokens, a block needs ", c.block_size + 1));
    }
  }
  task.train = std::make_unique<BlockDataset>(file, train, c.block_size, key);
  task.data_text =
      cat(format_count(task.train->size()), " blocks of ", c.block_size, " tokens",
          task.validation ? cat(", validation ", format_count(task.validation->size())) : "");
}

Task open(const TrainConfig& c, const Progress& progress, std::vector<std::string>& warnings) {
  Task task;
  std::unique_ptr<Tokenizer> tokenizer;
  const bool data = !c.train_file.empty() || !c.validation_file.empty();
  if (!c.tokenizer.empty()) {
    tokenizer = make_tokenizer(c.tokenizer);
  } else if (data) {
    tokenizer = load_tokenizer(c.model_name_or_path);
  }
  if (data) open_data(c, *tokenizer, progress, warnings, task);
  const LlamaConfig shape = shape_of(c, tokenizer.get());
  task.llama = shape;
  task.config = llama_config_to_json(shape);
  if (tokenizer) task.files = tokenizer_files(*tokenizer);
  task.unit = "tokens";
  task.units = c.block_size;
  task.network_text = cat("vocabulary ", format_count(shape.vocab_size));
  task.network = [c, shape](const Policy& policy, at::Device device) {
    return std::make_unique<Llama>(shape, policy,
                                   ModelOptions{.device = device,
                                                .dtype = dtype_of(c.dtype),
                                                .max_length = c.block_size,
                                                .seed = key_of(c, RandomUse::kWeights)});
  };
  task.inputs = [length = c.block_size](at::Device device, int64_t batch) {
    const auto ids = at::TensorOptions().device(device).dtype(at::kLong);
    return StepInputs{{at::ones({batch, length}, ids)}, at::ones({batch, length}, ids)};
  };
  return task;
}

}  // namespace

extern const TaskInfo language_modeling = {
    "language-modeling",        "next-token prediction on text, by a LLaMA", check, open, {"llama"},
    /*eval_samples=*/256,
    /*planned_from_data=*/false};

}  // namespace compact
