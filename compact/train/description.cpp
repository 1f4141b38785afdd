// SPDX-License-Identifier: Apache-2.0
#include "compact/train/description.h"

#include <ATen/Parallel.h>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/ops/functions/attention.h"
#include "compact/tasks/setup.h"

namespace compact {

std::vector<std::string> description(const Described& run) {
  const TrainConfig& c = run.config;
  const at::Device device = run.network.device();
  const int64_t accumulation = c.gradient_accumulation_steps;
  const int64_t dim = run.task.head_dim;
  const bool text = dim > 0 && run.task.units > 1;
  std::string attention;
  if (run.task.attention_dropout > 0) {
    attention = cat(", attention: chunks of scores, for its dropout ", run.task.attention_dropout);
  } else if (dim > 0) {
    attention = cat(", attention: ",
                    attention_text(choose_attention(device.type(), dtype_of(c.dtype), dim), dim));
  }
  return {
      cat("model    ", c.model.empty() ? c.model_name_or_path : c.model, ", ",
          format_count(run.network.parameter_count()), " parameters, ", run.task.network_text),
      cat("data     ", run.task.data_text),
      cat("run      ", format_count(run.steps), " steps of ",
          text ? c.per_device_train_batch_size : c.per_device_train_batch_size * run.task.units,
          text ? cat(" x ", c.block_size) : "", accumulation > 1 ? cat(" x ", accumulation) : "",
          " ", run.task.unit, ", ", c.optim, ", ", c.dtype, " on ", device.str(), " (products: ",
          run.matmul_path, attention, c.deterministic && device.is_cuda() ? ", deterministic" : "",
          device.is_cpu() ? cat(", threads: ", at::get_num_threads()) : "", ")"),
      cat("preset   ", c.preset, ", weights and optimizer state ", format_bytes(run.static_bytes)),
  };
}

}  // namespace compact
