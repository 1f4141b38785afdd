// SPDX-License-Identifier: Apache-2.0
#include "compact/train/evaluate.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/prepare.h"
#include "compact/io/hf_config.h"
#include "compact/kernels/kernels.h"
#include "compact/ops/memory.h"
#include "compact/train/precision.h"
#include "compact/train/setup.h"
#include "compact/train/tokenizer_store.h"

namespace compact {

EvalResult evaluate_blocks(const Llama& model, const BlockDataset& data, int64_t max_blocks,
                           int64_t batch) {
  at::NoGradGuard no_grad;
  const int64_t blocks = max_blocks > 0 ? std::min(max_blocks, data.blocks()) : data.blocks();
  EvalResult result;
  double sum = 0;
  for (int64_t i = 0; i < blocks; i += batch) {
    const Batch b = data.in_order(i, std::min(batch, blocks - i));
    const at::Device device = model.options().device;
    sum += model.loss(b.input.to(device), b.target.to(device), 1.0).item<double>();
    result.tokens += b.target.ne(kernels::kIgnoreIndex).sum().item<int64_t>();
  }
  result.eval_loss = sum / static_cast<double>(std::max<int64_t>(1, result.tokens));
  result.eval_perplexity = std::exp(result.eval_loss);
  return result;
}

EvalResult evaluate_within_memory(const Llama& model, const BlockDataset& data, int64_t max_blocks,
                                  int64_t& batch, Console& console) {
  for (;;) {
    try {
      return evaluate_blocks(model, data, max_blocks, batch);
    } catch (const OutOfMemory& e) {
      if (batch == 1) throw;
      batch /= 2;
      console.line(cat("warning: ", e.what(), "; evaluation goes on with batches of ", batch));
    }
  }
}

std::string eval_line(int64_t step, const EvalResult& r) {
  char text[128];
  std::snprintf(text, sizeof text, "step %lld  eval_loss %.4f  eval_perplexity %.2f  (%s tokens)",
                static_cast<long long>(step), r.eval_loss, r.eval_perplexity,
                format_count(r.tokens).c_str());
  return text;
}

EvalResult evaluate(const EvalOptions& o) {
  COMPACT_CHECK(!o.model_name_or_path.empty(), "--model_name_or_path is needed");
  COMPACT_CHECK(!o.validation_file.empty(), "--validation_file is needed");
  COMPACT_CHECK(o.block_size > 0, "--block_size must be positive, is ", o.block_size);
  COMPACT_CHECK(o.per_device_eval_batch_size > 0,
                "--per_device_eval_batch_size must be positive, is ", o.per_device_eval_batch_size);
  if (o.threads > 0) at::set_num_threads(static_cast<int>(o.threads));
  const at::Device device = device_of(o.device);
  const LlamaConfig shape = read_llama_config(o.model_name_or_path);
  const auto tokenizer =
      o.tokenizer.empty() ? load_tokenizer(o.model_name_or_path) : make_tokenizer(o.tokenizer);
  COMPACT_CHECK(tokenizer->vocabulary() <= shape.vocab_size, "the tokenizer has ",
                tokenizer->vocabulary(), " tokens, the model only ", shape.vocab_size);
  const CachedTokens tokens = cached_token_file(
      o.validation_file, *tokenizer, o.cache_dir.empty() ? default_cache_folder() : o.cache_dir,
      {.field = o.text_field});
  const BlockDataset data(std::make_shared<const TokenFile>(tokens.path), o.block_size, 0);
  set_matmul_precision(o.matmul_precision, device);
  Llama model(shape, Policy::preset("exact"),
              {.device = device, .dtype = dtype_of(o.dtype), .max_length = o.block_size});
  load_weights(model, o.model_name_or_path);
  return evaluate_blocks(model, data, o.max_eval_samples, o.per_device_eval_batch_size);
}

}  // namespace compact
