// SPDX-License-Identifier: Apache-2.0
#include "compact/train/description.h"

#include <ATen/Parallel.h>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/config/option.h"
#include "compact/config/precision.h"
#include "compact/ops/cpu/bf16_products.h"
#include "compact/ops/functions/attention.h"
#include "compact/plan/gpu_card.h"
#include "compact/tasks/setup.h"

namespace compact {

namespace {

// ", attention: " and its kernel, or why there is none.
std::string attention_of(const AttentionShape& a, at::Device device, at::ScalarType type,
                         int64_t length) {
  if (a.head_dim == 0) return "";
  const std::string chunks = ", attention: chunks of scores, for its ";
  if (a.softcap > 0) return cat(chunks, "cap ", a.softcap);
  const AttentionChoice choice = a.dropout > 0
                                     ? choose_masked_attention(device, type, a.head_dim, a.dropout)
                                     : choose_attention(device.type(), type, a.head_dim);
  if (choice.kernel == AttentionKernel::kChunks) return cat(chunks, "dropout ", a.dropout);
  const bool narrow = a.window > 0 && a.window < length;
  return cat(", attention: ", attention_text(choice, a.head_dim),
             narrow ? cat(", and chunks of scores for its windows of ", a.window) : "");
}

// How many of its parameters training changes, where that is not all.
std::string trained_of(const Network& network) {
  int64_t count = 0;
  for (const Parameter* p : network.trained()) count += p->count();
  return count < network.parameter_count() ? cat(" (", format_count(count), " trained)") : "";
}

}  // namespace

// The epochs of all steps, which are whole, so that this may be a little more or less than asked.
std::string epochs_of(const Described& run) {
  const int64_t step = samples_of_step(run.config, run.ranks);
  return formatted(
      "%.3g", static_cast<double>(run.steps * step) / static_cast<double>(run.task.train->size()));
}

std::string products_text(const TrainConfig& c, at::Device device, const std::string& matmul_path) {
  const at::ScalarType type = dtype_of(c.dtype);
  choose_bf16_products();  // as a network will
  if (device.is_cuda() && type == at::kFloat) {
    return float_products(planned_card(), c.matmul_precision);
  }
  if (!device.is_cpu() || type != at::kBFloat16 || bf16_products() == Bf16Products::kNative) {
    return matmul_path;
  }
  return formatted("%s, bf16 %s: %.0f GFLOP/s", matmul_path.c_str(), kConvertedProducts,
                   product_gflops(at::kBFloat16));
}

std::vector<std::string> description(const Described& run) {
  const TrainConfig& c = run.config;
  const at::Device device = run.network.device();
  const int64_t accumulation = c.gradient_accumulation_steps;
  const AttentionShape& shape = run.task.attention;
  const bool text = shape.head_dim > 0 && run.task.units > 1;
  const std::string attention = attention_of(shape, device, dtype_of(c.dtype), c.block_size);
  const auto elsewhere = [&](const char* what, int64_t bytes) {
    return bytes == 0 ? ""
                      : cat(", ", what, device.is_cpu() ? " on a disk " : " on the host ",
                            format_bytes(bytes));
  };
  return {
      cat("model    ", c.model.empty() ? c.model_name_or_path : c.model, ", ",
          format_count(run.network.parameter_count()), " parameters", trained_of(run.network), ", ",
          run.task.network_text),
      cat("data     ", run.task.data_text),
      cat("run      ", format_count(run.steps), " steps (", epochs_of(run), " epochs) of ",
          text ? c.per_device_train_batch_size : c.per_device_train_batch_size * run.task.units,
          text ? cat(" x ", c.block_size) : "", accumulation > 1 ? cat(" x ", accumulation) : "",
          run.ranks > 1 ? cat(" x ", run.ranks, " ranks") : "", " ", run.task.batch_unit(),
          run.ranks > 1 ? cat(", zero ", c.zero) : "", ", ", c.optim, " at ",
          number_text(c.learning_rate),
          c.warmup_steps > 0 ? cat(" after warm-up of ", number_text(c.warmup_steps)) : "", ", ",
          c.dtype, " on ", device.str(), " (products: ", run.products, attention,
          c.deterministic && device.is_cuda() ? ", deterministic" : "",
          device.is_cpu() ? cat(", threads: ", at::get_num_threads()) : "", ")"),
      cat("preset   ", c.preset, ", weights and optimizer state ", format_bytes(run.static_bytes),
          elsewhere("weights", run.weights_elsewhere), elsewhere("state", run.state_elsewhere)),
  };
}

}  // namespace compact
