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

// Operations whose results have an error as small as that of their arguments. Not here: those that
// divide by a tensor or grow without bound (div, log, exp, rsqrt, pow, softmax), comparisons,
// choices of places, and sums that may be differences (addcmul).
constexpr std::string_view kSmooth[] = {
    "_adaptive_avg_pool2d",
    "_fused_rms_norm",
    "_native_batch_norm_legit",
    "_to_copy",
    "_unsafe_index",
    "add",
    "avg_pool2d",
    "cat",
    "celu",
    "clamp",
    "clamp_min",
    "clone",
    "constant_pad_nd",
    "copy",
    "cudnn_batch_norm",
    "div",
    "elu",
    "flip",
    "gelu",
    "glu",
    "hardswish",
    "hardtanh",
    "im2col",
    "index",
    "index_select",
    "leaky_relu",
    "lerp",
    "masked_fill",
    "max_pool2d_with_indices",
    "mean",
    "mish",
    "mul",
    "native_batch_norm",
    "native_channel_shuffle",
    "native_dropout",
    "native_group_norm",
    "native_layer_norm",
    "neg",
    "pixel_shuffle",
    "pixel_unshuffle",
    "reflection_pad1d",
    "reflection_pad2d",
    "relu",
    "repeat",
    "replication_pad2d",
    "roll",
    "rsub",
    "select_scatter",
    "sigmoid",
    "silu",
    "slice_scatter",
    "softplus",
    "stack",
    "sub",
    "sum",
    "tanh",
    "tril",
    "triu",
    "upsample_bilinear2d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "where",
};
static_assert(std::ranges::is_sorted(kSmooth));

using Arguments = c10::ArrayRef<const c10::IValue>;

constexpr int64_t kLeastChannel = 128;  // elements of which statistics are made

// Whether rows of the tensor lie in memory as rows of what was made, and may have scales of their
// own.
bool has_whole_rows(const at::Tensor& t) {
  const bool whole = !t.is_view() || (t._base().dim() > 0 && t._base().size(-1) == t.size(-1));
  return t.dim() > 0 && t.is_contiguous() && whole;
}

// Where elements share scales with others of another size, their statistics are less near than they
// are themselves. A norm of rows, each of which has scales of its own where it is encoded.
bool is_of_whole_rows(Arguments arguments, const RoundedInputs&) {
  const int64_t normalized = c10::multiply_integers(arguments[1].toIntVector());
  return normalized >= kLeastRow && has_whole_rows(arguments[0].toTensor());
}

// A norm of channels that lie in memory one after the other.
bool is_of_long_channels(Arguments arguments, const RoundedInputs&) {
  const at::Tensor& t = arguments[0].toTensor();
  return t.dim() >= 3 && t.is_contiguous() && t.numel() >= kLeastChannel * t.size(1) &&
         t.numel() >= kLeastRow * t.size(0) * t.size(1);
}

bool is_of_long_groups(Arguments arguments, const RoundedInputs&) {
  const at::Tensor& t = arguments[0].toTensor();
  const int64_t groups = arguments[6].toInt();
  return t.is_contiguous() && t.numel() >= kLeastChannel * t.size(0) * groups &&
         t.numel() >= kLeastRow * t.size(0) * t.size(1);
}

// Indices of a dimension that have values of their own.
int64_t values_of(const at::Tensor& t, int64_t d) { return t.stride(d) == 0 ? 1 : t.size(d); }

// Whether all elements of `t` that share a scale where it is encoded meet one value of the other.
bool is_same_in_rows(const at::Tensor& t, const at::Tensor& other) {
  if (other.numel() == 1) return true;
  if (!has_whole_rows(t)) return false;
  for (int64_t d = 1, row = 1; row < kLeastRow; row *= t.size(-d++)) {
    if (d > t.dim() || (d <= other.dim() && values_of(other, -d) != 1)) return false;
  }
  return true;
}

// A difference loses what is common to its operands, but not their errors: of two rounded tensors,
// or of one and an exact one with other values for elements that share a scale.
bool takes_from_rows(Arguments arguments, const RoundedInputs& rounded) {
  if (rounded.empty() || !arguments[1].isTensor()) return true;
  const size_t one = rounded[0].argument;
  return rounded.size() == 1 &&
         is_same_in_rows(arguments[one].toTensor(), arguments[1 - one].toTensor());
}

// A number that the call says, and 1 for what is trained (parameters, gates), which no one chose so
// that values cancel; 0: a tensor's elements, which may have both signs.
double number_in(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& t = value.toTensor();
    if (t.defined() && t.requires_grad()) return 1;
    if (!t.defined() || !t.unsafeGetTensorImpl()->is_wrapped_number() || !t.is_cpu()) return 0;
    if (t.scalar_type() == at::kLong) return static_cast<double>(*t.const_data_ptr<int64_t>());
    return t.scalar_type() == at::kDouble ? *t.const_data_ptr<double>() : 0;
  }
  return value.isScalar() && !value.toScalar().isComplex() ? value.toScalar().toDouble() : 0;
}

// A tensor that was put together of values and negatives, as rotary positions are, is not.
bool is_of_one_sign(Arguments, const RoundedInputs& rounded) {
  return std::ranges::all_of(rounded, [&](const RoundedInput& one) {
    return one.signs != kBoth && one.signs == rounded[0].signs;
  });
}

bool is_sum(Arguments arguments, const RoundedInputs& rounded) {
  if (rounded.size() < 2) return takes_from_rows(arguments, rounded);
  return number_in(arguments.back()) > 0 && is_of_one_sign(arguments, rounded);
}

bool is_mean_of_two(Arguments arguments, const RoundedInputs& rounded) {
  const double weight = number_in(arguments[2]);
  if (rounded.empty() || weight <= 0 || weight > 1) return rounded.empty();
  return rounded.size() < 2 ? takes_from_rows(arguments, rounded)
                            : is_of_one_sign(arguments, rounded);
}

// A factor of each row may make small rows as large as others.
bool is_of_like_rows(Arguments arguments, const RoundedInputs& rounded) {
  return std::ranges::all_of(rounded, [&](const RoundedInput& one) {
    const c10::IValue& other = arguments[1 - one.argument];
    if (!other.isTensor()) return true;
    const at::Tensor &t = arguments[one.argument].toTensor(), &factor = other.toTensor();
    bool of_rows = false;
    for (int64_t d = 1; d <= std::min(t.dim(), factor.dim()); ++d) {
      of_rows |= t.size(-d) > 1 && values_of(factor, -d) == 1;
    }
    return !of_rows || is_same_in_rows(t, factor);
  });
}

bool divides_by_number(Arguments arguments, const RoundedInputs&) {
  return !arguments[1].isTensor() ||
         arguments[1].toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

struct SmoothWhere {
  std::string_view name;
  OpRule::Smooth where;
  OpRule::Turns turns = OpRule::Turns::kNone;
};
using Turns = OpRule::Turns;
constexpr SmoothWhere kSmoothWhere[] = {
    {"_fused_rms_norm", is_of_whole_rows},
    {"_adaptive_avg_pool2d", is_of_one_sign},
    {"_native_batch_norm_legit", is_of_long_channels},
    {"add", is_sum, Turns::kByAlpha},
    {"avg_pool2d", is_of_one_sign},
    {"cudnn_batch_norm", is_of_long_channels},
    {"div", divides_by_number, Turns::kByFactor},
    {"lerp", is_mean_of_two},
    {"mean", is_of_one_sign},
    {"mul", is_of_like_rows, Turns::kByFactor},
    {"native_batch_norm", is_of_long_channels},
    {"native_group_norm", is_of_long_groups},
    {"native_layer_norm", is_of_whole_rows},
    {"neg", nullptr, Turns::kFirst},
    {"rsub", takes_from_rows, Turns::kFirst},
    {"sub", takes_from_rows, Turns::kSecond},
    {"sum", is_of_one_sign},
    {"upsample_bilinear2d", is_of_one_sign},
};

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

// Results of at most two values: what draws them or fills memory, and what changes values one by
// one, where one tensor of such values is read and all else that is read are numbers.
constexpr std::string_view kMakesTwoValues[] = {
    "bernoulli", "bernoulli_", "fill_",     "full",  "full_like", "new_full",   "new_ones",
    "new_zeros", "ones",       "ones_like", "zero_", "zeros",     "zeros_like",
};
static_assert(std::ranges::is_sorted(kMakesTwoValues));
constexpr std::string_view kKeepsTwoValues[] = {
    "_to_copy", "add", "add_", "clone", "div",  "div_",  "mul",
    "mul_",     "neg", "rsub", "sub",   "sub_", "where",
};
static_assert(std::ranges::is_sorted(kKeepsTwoValues));
// The same of values that are not below 0, as a mask of stochastic depth.
constexpr std::string_view kMakesNotNegative[] = {
    "bernoulli", "bernoulli_", "new_ones", "new_zeros", "ones",       "ones_like",
    "rand",      "rand_like",  "zero_",    "zeros",     "zeros_like",
};
static_assert(std::ranges::is_sorted(kMakesNotNegative));
constexpr std::string_view kKeepsNotNegative[] = {
    "_to_copy", "add", "add_", "clone", "div", "div_", "floor", "floor_", "mul", "mul_",
};
static_assert(std::ranges::is_sorted(kKeepsNotNegative));

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
  if (name.starts_with(kAten) && !elsewhere) {
    std::string_view own = name.substr(kAten.size());
    const std::string_view made = own.ends_with('_') ? own.substr(0, own.size() - 1) : own;
    rule.smooth = std::ranges::binary_search(kSmooth, made);
    const auto where = std::ranges::find(kSmoothWhere, made, &SmoothWhere::name);
    if (where != std::end(kSmoothWhere)) {
      rule.smooth_where = where->where;
      rule.turns = where->turns;
    }
    const auto values = [&](const auto& makes, const auto& keeps) {
      using Values = OpRule::Values;
      if (std::ranges::binary_search(makes, own)) return Values::kMakes;
      return std::ranges::binary_search(keeps, own) ? Values::kKeeps : Values::kOther;
    };
    rule.two_values = values(kMakesTwoValues, kKeepsTwoValues);
    rule.not_negative = values(kMakesNotNegative, kKeepsNotNegative);
  }
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

bool is_smooth(const OpRule& rule, Arguments arguments, const RoundedInputs& rounded) {
  return rule.smooth && (!rule.smooth_where || rule.smooth_where(arguments, rounded));
}

bool stays_not_negative(const OpRule& rule, Arguments arguments) {
  if (rule.not_negative != OpRule::Values::kKeeps) {
    return rule.not_negative == OpRule::Values::kMakes;
  }
  return std::ranges::all_of(arguments, [](const c10::IValue& value) {
    const bool wrapped =
        value.isTensor() && value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
    return !(wrapped || value.isInt() || value.isDouble()) || number_in(value) >= 0;
  });
}

uint8_t signs_of(const OpRule& rule, Arguments arguments, const RoundedInputs& rounded,
                 FunctionRef<bool(size_t)> not_negative) {
  const auto factor_of = [&](size_t argument) -> double {
    switch (rule.turns) {
      case Turns::kNone:
        return 1;
      case Turns::kFirst:
        return argument == 0 ? -1 : 1;
      case Turns::kSecond:
        return argument == 1 ? -1 : 1;
      case Turns::kByAlpha:
        return argument == 1 ? number_in(arguments.back()) : 1;
      case Turns::kByFactor:
        return not_negative(1 - argument) ? 1 : number_in(arguments[1 - argument]);
    }
    return 0;
  };
  uint8_t all = 0;
  for (const auto& [argument, signs] : rounded) {
    const double factor = factor_of(argument);
    all |= factor == 0 ? kBoth : factor < 0 && signs != kBoth ? signs ^ kBoth : signs;
  }
  return all ? all : uint8_t{kPlain};
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
