// SPDX-License-Identifier: Apache-2.0
// Loss and perplexity on held-out text: `compact eval`, and evaluation in training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compact/data/dataset.h"
#include "compact/models/llama.h"
#include "compact/train/metrics.h"

namespace compact {

struct EvalResult {
  double eval_loss = 0, eval_perplexity = 0;  // mean negative log-likelihood of a token; its exp
  int64_t tokens = 0;
};

// Over the first `max_blocks` blocks (0: all) in the order of the file.
EvalResult evaluate_blocks(const Llama& model, const BlockDataset& data, int64_t max_blocks,
                           int64_t batch);

// The same; where memory runs out `batch` is halved, with a line on the console, down to 1.
EvalResult evaluate_within_memory(const Llama& model, const BlockDataset& data, int64_t max_blocks,
                                  int64_t& batch, Console& console);

// For the console, after `step` updates.
std::string eval_line(int64_t step, const EvalResult& result);

struct EvalOptions {
  std::string model_name_or_path;  // a folder with config.json and model.safetensors
  std::vector<std::string> validation_file;
  std::string tokenizer;  // empty: as stored in the folder
  std::string text_field = "text";
  int64_t block_size = 256, per_device_eval_batch_size = 8;
  int64_t max_eval_samples = 0;  // blocks; 0: all
  std::string dtype = "float32", device = "auto", matmul_precision = "highest";
  int64_t threads = 0;
  std::string cache_dir;
};
EvalResult evaluate(const EvalOptions& options);

}  // namespace compact
