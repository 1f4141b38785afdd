// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/scopes/rebuild_rules_impl.h"

#include <ATen/Context.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "compact/codecs/meta_device.h"

namespace compact {
namespace {

// Beside those that ATen tags as pointwise. Not here: what draws numbers; sums whose order is free
// on a GPU (index_add, scatter, cumsum) and choices among equals (sort, topk); what makes memory
// (empty, zeros, full), since kernels that PyTorch does not see may fill it.
constexpr std::string_view kAgain[] = {
    "_adaptive_avg_pool2d",
    "_fused_rms_norm",
    "_log_softmax",
    "_native_batch_norm_legit",
    "_safe_softmax",
    "_softmax",
    "_thnn_fused_gru_cell",
    "_thnn_fused_lstm_cell",
    "_to_copy",
    "_unsafe_index",
    "amax",
    "amin",
    "avg_pool2d",
    "cat",
    "constant_pad_nd",
    "cudnn_batch_norm",
    "embedding",
    "flip",
    "gather",
    "gelu_",
    "glu",
    "im2col",
    "index",
    "index_select",
    "linalg_vector_norm",
    "masked_fill_",
    "max_pool2d_with_indices",
    "mean",
    "mish_",
    "native_batch_norm",
    "native_channel_shuffle",
    "native_group_norm",
    "native_layer_norm",
    "pixel_shuffle",
    "pixel_unshuffle",
    "reflection_pad1d",
    "reflection_pad2d",
    "repeat",
    "replication_pad2d",
    "roll",
    "select_scatter",
    "slice_scatter",
    "stack",
    "sum",
    "threshold_",
    "tril",
    "triu",
    "upsample_bilinear2d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "var",
    "var_mean",
};
static_assert(std::ranges::is_sorted(kAgain));

using Kind = OpRule::Heavy::Kind;
constexpr OpRule::Heavy kHeavy[] = {
    {"aten::mm", Kind::kProduct},
    {"aten::bmm", Kind::kProduct},
    {"aten::addmm", Kind::kProduct, 1},
    {"aten::baddbmm", Kind::kProduct, 1},
    {"aten::_grouped_mm", Kind::kProduct},
    {"aten::convolution", Kind::kConvolution},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", Kind::kAttention, 0, 3},
    {"aten::_scaled_dot_product_flash_attention", Kind::kAttention, 0, 3},
    {"aten::_scaled_dot_product_efficient_attention", Kind::kAttention, 0, 5},
    {"aten::_scaled_dot_product_cudnn_attention", Kind::kAttention, 0, 5},
};

constexpr OpRule::Statistics kStatistics[] = {
    {"aten::native_batch_norm", 3, 5},        {"aten::cudnn_batch_norm", 3, 5},
    {"aten::miopen_batch_norm", 3, 5},        {"aten::batch_norm_update_stats", 1, -1},
    {"aten::batch_norm_gather_stats", 3, -1}, {"aten::batch_norm_gather_stats_with_counts", 3, -1},
};

OpRule make_rule(const c10::OperatorHandle& op) {
  OpRule rule{.op = op};
  const c10::FunctionSchema& schema = op.schema();
  bool elsewhere = false;  // it writes anything but its first argument
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& a = schema.arguments()[i];
    const bool written = a.alias_info() && a.alias_info()->isWrite();
    rule.written.push_back(written);
    rule.writes |= written;
    elsewhere |= written && (i > 0 || a.is_out());
    rule.resizes |= written && a.is_out();
  }
  rule.leaf = !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  rule.cast_on_cpu = op.hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU);
  rule.cast_on_cuda = op.hasKernelForDispatchKey(c10::DispatchKey::AutocastCUDA);
  const std::string_view name = schema.name();
  rule.resizes |= name.starts_with("aten::resize") || name.starts_with("aten::set_");
  constexpr std::string_view kAten = "aten::";
  rule.again = name.starts_with(kAten) && !elsewhere &&
               !op.hasTag(at::Tag::nondeterministic_seeded) &&
               (op.hasTag(at::Tag::pointwise) ||
                std::ranges::binary_search(kAgain, name.substr(kAten.size())));
  const auto heavy = std::ranges::find(kHeavy, name, &OpRule::Heavy::name);
  if (heavy != std::end(kHeavy) && schema.overload_name().empty() && !elsewhere)
    rule.heavy = &*heavy;
  if (name.starts_with(kAten) && !elsewhere) take_values(rule, name.substr(kAten.size()));
  rule.drops = name == "aten::native_dropout" && schema.overload_name().empty();
  const auto statistics = std::ranges::find(kStatistics, name, &OpRule::Statistics::name);
  if (statistics != std::end(kStatistics)) rule.statistics = &*statistics;
  return rule;
}

}  // namespace

std::optional<double> scale_of_dropout(c10::ArrayRef<const c10::IValue> arguments) {
  const at::Tensor& t = arguments[0].toTensor();
  const double kept = 1 - arguments[1].toDouble();
  const bool drops = kept > 0 && kept < 1 && (arguments[2].isNone() || arguments[2].toBool());
  // Its backward operation returns dense tensors of a memory format, and keeps no other strides.
  if (!drops || !t.is_contiguous(t.suggest_memory_format())) return std::nullopt;
  if (t.scalar_type() == at::kDouble) return 1 / kept;
  // Its kernel for a GPU divides in float; on a CPU it multiplies by a number of the tensor's type.
  if (device_type_of(t) == at::kCUDA) return 1 / static_cast<float>(kept);
  const auto scale = static_cast<float>(1 / kept);
  if (t.scalar_type() == at::kBFloat16) return static_cast<c10::BFloat16>(scale);
  if (t.scalar_type() == at::kHalf) return static_cast<c10::Half>(scale);
  return scale;
}

bool is_cast(const OpRule& rule, c10::ArrayRef<const c10::IValue> arguments) {
  const auto on = [](bool has, c10::DispatchKey key) {
    return has && !c10::impl::tls_is_dispatch_key_excluded(key);
  };
  const bool cpu = on(rule.cast_on_cpu, c10::DispatchKey::AutocastCPU);
  const bool cuda = on(rule.cast_on_cuda, c10::DispatchKey::AutocastCUDA);
  if (!cpu && !cuda) return false;
  const auto casts = [&](const at::Tensor& t) {
    return t.defined() && ((cpu && t.is_cpu()) || (cuda && t.is_cuda()));
  };
  return std::ranges::any_of(arguments, [&](const c10::IValue& value) {
    if (value.isTensor()) return casts(value.toTensor());
    return value.isTensorList() && std::ranges::any_of(value.toTensorVector(), casts);
  });
}

bool gives_the_same(const OpRule::Heavy& heavy, c10::ArrayRef<const c10::IValue> arguments) {
  const at::Context& context = at::globalContext();
  const bool free = heavy.kind == Kind::kConvolution && arguments[0].isTensor() &&
                    device_type_of(arguments[0].toTensor()) != at::kCPU &&
                    !context.deterministicCuDNN() && !context.deterministicAlgorithms();
  if (free && (context.benchmarkCuDNN() || arguments[6].toBool())) return false;
  if (heavy.dropout < 0) return true;
  const c10::IValue& chance = arguments[static_cast<size_t>(heavy.dropout)];
  return chance.isDouble() && chance.toDouble() == 0;
}

int64_t work_of(const OpRule::Heavy& heavy, c10::ArrayRef<c10::IntArrayRef> inputs,
                c10::IntArrayRef result, c10::ArrayRef<c10::IValue> arguments, bool on_cpu) {
  // Floating-point operations in the time of a byte: two cores of a server, an H100.
  constexpr double kOnCpu = 5, kOnGpu = 130;
  const auto count = [](c10::IntArrayRef sizes) {
    return static_cast<double>(c10::multiply_integers(sizes));
  };
  const c10::IntArrayRef first = inputs[heavy.matrix], second = inputs[heavy.matrix + 1];
  double operations = 0;
  switch (heavy.kind) {
    case Kind::kProduct:
      operations = 2 * count(result) * static_cast<double>(first.back());
      break;
    case Kind::kConvolution: {  // a window for each place, of what it reads where it is transposed
      const bool transposed = arguments[6].toBool();
      operations = 2 * count(transposed ? first : result) * count(second.slice(1));
      break;
    }
    case Kind::kAttention:
      operations = 4 * count(first) * static_cast<double>(second[second.size() - 2]);
      break;
  }
  return static_cast<int64_t>(operations / (on_cpu ? kOnCpu : kOnGpu));
}

uint64_t precision_settings() {
  at::Context& context = at::globalContext();
  uint64_t all = 0;
  for (const auto backend : {at::Float32Backend::CUDA, at::Float32Backend::MKLDNN}) {
    for (const auto op : {at::Float32Op::CONV, at::Float32Op::MATMUL}) {
      all = 8 * all + static_cast<uint64_t>(context.float32Precision(backend, op));
    }
  }
  all = 4 * all + static_cast<uint64_t>(context.allowFP16ReductionCuBLAS());
  all = 4 * all + static_cast<uint64_t>(context.allowBF16ReductionCuBLAS());
  all = 8 * all + static_cast<uint64_t>(context.blasPreferredBackend());
  for (const bool flag : {context.benchmarkCuDNN(), context.deterministicCuDNN(),
                          context.deterministicAlgorithms(), context.userEnabledCuDNN(),
                          context.allowFP16ReductionCPU(), context.allowFP16AccumulationCuBLAS(),
                          context.deterministicMkldnn(), context.userEnabledNNPACK()}) {
    all = 2 * all + static_cast<uint64_t>(flag);
  }
  return all;
}

const OpRule* rule_of(const at::RecordFunction& f) {
  struct Known {
    std::string name, overload;
    std::optional<OpRule> rule;
  };
  // By where the dispatcher keeps the name, since asking for an OperatorName copies it. Another
  // operator may be registered there later.
  thread_local std::unordered_map<const char*, Known> known;
  const auto at = known.find(f.name());
  if (at != known.end() && at->second.name == f.name() &&
      at->second.overload == f.overload_name()) {
    return at->second.rule ? &*at->second.rule : nullptr;
  }
  const std::optional<c10::OperatorName> name = f.operator_name();
  if (!name) return nullptr;
  Known found{f.name(), f.overload_name(), std::nullopt};
  if (const auto op = c10::Dispatcher::singleton().findSchema(*name)) found.rule = make_rule(*op);
  Known& kept = known.insert_or_assign(f.name(), std::move(found)).first->second;
  return kept.rule ? &*kept.rule : nullptr;
}

}  // namespace compact
