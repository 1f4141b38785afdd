// SPDX-License-Identifier: Apache-2.0
#include "compact/train/description.h"

#include <ATen/Parallel.h>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/ops/attention.h"

namespace compact {

std::vector<std::string> description(const Described& run) {
  const TrainConfig& c = run.config;
  const at::Device device = run.model.options().device;
  const int64_t accumulation = c.gradient_accumulation_steps;
  return {
      cat("model    ", c.model.empty() ? c.model_name_or_path : c.model, ", ",
          format_count(run.model.parameter_count()), " parameters, vocabulary ",
          format_count(run.model.config().vocab_size)),
      cat("data     ", format_count(run.data.train->blocks()), " blocks of ", c.block_size,
          " tokens",
          run.data.validation ? cat(", validation ", format_count(run.data.validation->blocks()))
                              : ""),
      cat("run      ", format_count(run.steps), " steps of ", c.per_device_train_batch_size, " x ",
          c.block_size, accumulation > 1 ? cat(" x ", accumulation) : "", " tokens, ", c.optim,
          ", ", c.dtype, " on ", device.str(), " (products: ", run.matmul_path,
          ", attention: ", attention_kernel(device, dtype_of(c.dtype)),
          device.is_cpu() ? cat(", threads: ", at::get_num_threads()) : "", ")"),
      cat("preset   ", c.preset, ", weights and optimizer state ", format_bytes(run.static_bytes)),
  };
}

}  // namespace compact
