// SPDX-License-Identifier: Apache-2.0
// How operations change values: whether errors of what they read stay as small, which signs have
// what, and results of two values, or of none below 0.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string_view>

#include "compact/ops/scopes/rebuild_rules_impl.h"

namespace compact {
namespace {

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

}  // namespace

void take_values(OpRule& rule, std::string_view own) {
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

}  // namespace compact
