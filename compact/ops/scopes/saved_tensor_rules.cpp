// SPDX-License-Identifier: Apache-2.0
// The table of how backward passes of ATen's operations read saved tensors. All others are taken
// to be read exactly: values that are compared (maxima, clamps, absolute values) or divided
// by (quotients, roots, logarithms), and all that is unknown.
#include "compact/ops/scopes/saved_tensor_rules_impl.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "compact/base/check.h"

namespace compact {
namespace {

// Which tensor an operation saves: bits of its tensor arguments, or its result.
constexpr uint32_t kFirst = 1, kSecond = 2, kThird = 4, kQkv = 7, kResult = 1u << 31, kAny = ~0u;

int64_t whole(double x) { return static_cast<int64_t>(x); }

// Upper bounds of the integers that an operation saves, themselves outside; 0: unknown.
int64_t in_map(const RunningOp& op) {
  return op.sizes.size() < 2 ? 0 : op.sizes[op.sizes.size() - 2] * op.sizes.back();
}
int64_t rows_of_first(const RunningOp& op) { return op.sizes.empty() ? 0 : op.sizes.front(); }
// None of these operations takes a negative index.
int64_t along_dimension(const RunningOp& op) {
  if (op.sizes.empty() || op.numbers.empty()) return 0;
  const auto dimensions = static_cast<int64_t>(op.sizes.size());
  return op.sizes[static_cast<size_t>((whole(op.numbers[0]) + dimensions) % dimensions)];
}

// Conditions of rows that hold for some calls only.
using When = bool (*)(const RunningOp&, const at::Tensor&);
bool is_cube(const RunningOp& op, const at::Tensor&) {
  return op.overload == "Tensor_Scalar" && !op.numbers.empty() && op.numbers[0] == 3;
}
bool is_square(const RunningOp& op, const at::Tensor&) {
  return op.overload == "Tensor_Scalar" && !op.numbers.empty() && op.numbers[0] == 2;
}
// Attention's weights, over the last of [batch, heads, queries, keys].
bool is_attention(const RunningOp& op, const at::Tensor& t) {
  return t.dim() >= 4 && !op.numbers.empty() &&
         (op.numbers[0] == -1 || whole(op.numbers[0]) == t.dim() - 1);
}
// An ELU whose derivative has no jump: slope alpha * scale * input_scale below 0 and scale above.
bool is_smooth_elu(const RunningOp& op, const at::Tensor&) {
  double slope = 1;
  for (const double x : op.numbers) slope *= x;
  return op.numbers.size() < 2 ? slope == 1 : std::abs(slope - op.numbers[1]) < 1e-6;
}
// Maps [batch, channels, length(s)]: roles are those of convolutional networks.
bool is_map(const RunningOp&, const at::Tensor& t) { return t.dim() >= 3; }
// Maps of images: a convolution may have made them, and a batch norm read what follows, so that
// channels of other sizes share no scale.
bool is_image_map(const RunningOp&, const at::Tensor& t) { return t.dim() >= 4; }
// A factor of rows of 64 elements or more. The gradient of a row is divided by it where a norm
// comes after, and it takes few bytes.
bool is_factor_of_rows(const RunningOp& op, const at::Tensor& t) {
  const auto [factor, rows] =
      std::minmax({c10::multiply_integers(op.values[0]), c10::multiply_integers(op.values[1])});
  return t.numel() == factor && rows >= 64 * factor;
}
// Attention's values, not the logarithms beside them.
bool is_values(const RunningOp&, const at::Tensor& t) { return t.dim() >= 4 && t.size(-1) > 1; }

// Sets which dimensions are apart: the operation divides by a scale of each of their indices.
using Scaling = std::vector<CodedDimension>;
using Scales = void (*)(const RunningOp&, Scaling&);
void by_channel(const RunningOp&, Scaling& all) {
  if (all.size() > 1) all[1].apart = true;
}
void by_row(const RunningOp& op, Scaling& all) {
  for (size_t d = 0; d + op.list.size() < all.size(); ++d) all[d].apart = true;
}
void by_group(const RunningOp& op, Scaling& all) {
  const auto groups = op.numbers.size() > 3 ? whole(op.numbers[3]) : 1;
  if (all.size() < 2 || groups < 1) return;
  all[0].apart = true;
  CodedDimension channels = all[1];
  channels.size /= groups;
  all[1] = {groups, channels.size * channels.stride, true};
  all.insert(all.begin() + 2, channels);
}
void by_dimensions(const RunningOp& op, Scaling& all) {
  if (op.list.empty()) return;  // of all elements
  for (CodedDimension& d : all) d.apart = true;
  const auto dimensions = static_cast<int64_t>(all.size());
  for (const int64_t d : op.list)
    all[static_cast<size_t>((d + dimensions) % dimensions)].apart = false;
}
// A factor of each row, as norms that are written out have, wherever the row lies.
void by_factor(const RunningOp& op, Scaling& all) {
  const bool first = std::ranges::equal(op.values[0], all, {}, {}, &CodedDimension::size);
  const auto& factor = op.values[first];
  if (factor.size() > all.size()) return;
  const auto row = std::span(all).last(factor.size());
  const bool repeats = !std::ranges::equal(
      factor, row, [](int64_t n, const CodedDimension& d) { return n > 1 || d.size == 1; });
  for (size_t d = 0; repeats && d < row.size(); ++d) row[d].apart = factor[d] > 1;
}

Scaling scaling_of(Scales scales, const RunningOp& op, const at::Tensor& t) {
  Scaling all;
  for (int64_t d = 0; d < t.dim(); ++d) all.push_back({t.size(d), t.stride(d), false});
  scales(op, all);
  return all;
}

// Rows of the tensor's own memory, or of a contiguous copy where it is not dense.
CodeRows rows_of_own(Scaling all, const at::Tensor& t) {
  int64_t next = t.numel();
  for (size_t d = 0; d < all.size() && !t.is_non_overlapping_and_dense(); ++d) {
    all[d].stride = next /= all[d].size;
  }
  return rows_apart(std::move(all), 0, t.numel()).value();
}

struct Row {
  std::string_view op;  // without the underscore of those that work in place
  uint32_t places;
  Reads reads;
  Role role = Role::kNone;
  When when = nullptr;
  int64_t (*limit)(const RunningOp&) = nullptr;  // of kPlaces
  Scales scales = nullptr;                       // Holding::apart
};

constexpr std::string_view kFusedAttention = "fused attention";  // under all its names

constexpr Row kRows[] = {
    // Products: a factor's gradient is the other factor's product with another gradient.
    {"mm", kAny, Reads::kNear},
    {"bmm", kAny, Reads::kNear},
    {"mv", kAny, Reads::kNear},
    {"dot", kAny, Reads::kNear},
    {"mul", kAny, Reads::kExact, Role::kNone, is_factor_of_rows},
    {"mul", kAny, Reads::kNear, Role::kNone, nullptr, nullptr, by_factor},
    {"lerp", kAny, Reads::kNear},
    {"addmm", kSecond | kThird, Reads::kNear},
    {"_sparse_addmm", kThird, Reads::kNear},
    {"addmv", kSecond | kThird, Reads::kNear},
    {"addbmm", kSecond | kThird, Reads::kNear},
    {"baddbmm", kSecond | kThird, Reads::kNear},
    {"addcmul", kSecond | kThird, Reads::kNear},
    {"linear", kFirst | kSecond, Reads::kNear},
    {"mkldnn_linear", kFirst | kSecond, Reads::kNear},
    {"_grouped_mm", kFirst | kSecond, Reads::kNear},
    {"_trilinear", kFirst | kSecond | kThird, Reads::kNear},
    {"convolution", kFirst, Reads::kNear, Role::kMap},
    {"convolution", kFirst | kSecond, Reads::kNear},
    {"mkldnn_rnn_layer", kFirst, Reads::kNear},
    {"grid_sampler_2d", kFirst, Reads::kNear},
    {"grid_sampler_3d", kFirst, Reads::kNear},
    {"graph_attention", kFirst, Reads::kNear},
    // Norms read normalised values, linearly and squared. Means and deviations are exact results.
    {"native_layer_norm", kFirst, Reads::kNear, Role::kNone, nullptr, nullptr, by_row},
    {"_fused_rms_norm", kFirst, Reads::kNear, Role::kNone, nullptr, nullptr, by_row},
    {"native_group_norm", kFirst, Reads::kNear, Role::kNone, nullptr, nullptr, by_group},
    {"native_batch_norm", kFirst, Reads::kNear, Role::kConv, is_map, nullptr, by_channel},
    {"native_batch_norm", kFirst, Reads::kNear, Role::kNone, nullptr, nullptr, by_channel},
    {"_native_batch_norm_legit", kFirst, Reads::kNear, Role::kConv, is_map, nullptr, by_channel},
    {"_native_batch_norm_legit", kFirst, Reads::kNear, Role::kNone, nullptr, nullptr, by_channel},
    {"_batch_norm_with_update", kFirst, Reads::kNear, Role::kConv, is_map, nullptr, by_channel},
    {"_batch_norm_with_update", kFirst, Reads::kNear, Role::kNone, nullptr, nullptr, by_channel},
    {"cudnn_batch_norm", kFirst, Reads::kNear, Role::kConv, is_map, nullptr, by_channel},
    {"cudnn_batch_norm", kFirst, Reads::kNear, Role::kNone, nullptr, nullptr, by_channel},
    {"miopen_batch_norm", kFirst, Reads::kNear, Role::kConv, is_map, nullptr, by_channel},
    {"miopen_batch_norm", kFirst, Reads::kNear, Role::kNone, nullptr, nullptr, by_channel},
    {"var", kFirst, Reads::kNear, Role::kNone, nullptr, nullptr, by_dimensions},
    {"var_mean", kFirst, Reads::kNear, Role::kNone, nullptr, nullptr, by_dimensions},
    {"std", kFirst, Reads::kNear, Role::kNone, nullptr, nullptr, by_dimensions},
    {"std_mean", kFirst, Reads::kNear, Role::kNone, nullptr, nullptr, by_dimensions},
    // Attention: weights that are made again from products, and with them the logarithms of their
    // sums (fused_attention_impl.h). Masks are exact.
    {kFusedAttention, kQkv, Reads::kNear},
    {kFusedAttention, kResult, Reads::kNear, Role::kNone, is_values},
    {"_softmax", kResult, Reads::kNear, Role::kNone, is_attention},
    {"_safe_softmax", kResult, Reads::kNear, Role::kNone, is_attention},
    // Smooth functions, whose derivative has a bounded slope.
    {"gelu", kFirst, Reads::kNear, Role::kNone, is_image_map, nullptr, by_channel},
    {"silu", kFirst, Reads::kNear, Role::kNone, is_image_map, nullptr, by_channel},
    {"mish", kFirst, Reads::kNear, Role::kNone, is_image_map, nullptr, by_channel},
    {"gelu", kFirst, Reads::kNear},
    {"silu", kFirst, Reads::kNear},
    {"mish", kFirst, Reads::kNear},
    {"glu", kFirst, Reads::kNear},
    {"celu", kFirst, Reads::kNear},
    {"elu", kFirst, Reads::kNear, Role::kNone, is_smooth_elu},
    {"pow", kFirst, Reads::kNear, Role::kNone, is_cube},
    // Smooth, too, but sqrt(x^2 + c) and its like divide by small values. (Results of sigmoid, tanh
    // and other softmaxes are exact: in p * log(p + c) what p is multiplied with is divided by it.)
    {"pow", kFirst, Reads::kNearBeside, Role::kNone, is_square},
    // Signs.
    {"relu", kResult, Reads::kRelu, Role::kSigns, is_map},
    {"relu", kResult, Reads::kRelu},
    {"leaky_relu", kFirst | kResult, Reads::kSigns},
    // Shapes.
    {"avg_pool2d", kFirst, Reads::kShape},
    {"avg_pool3d", kFirst, Reads::kShape},
    {"_adaptive_avg_pool2d", kFirst, Reads::kShape},
    {"_adaptive_avg_pool3d", kFirst, Reads::kShape},
    {"max_pool2d_with_indices", kFirst, Reads::kShape},
    {"max_pool3d_with_indices", kFirst, Reads::kShape},
    {"adaptive_max_pool2d", kFirst, Reads::kShape},
    {"adaptive_max_pool3d", kFirst, Reads::kShape},
    {"gather", kFirst, Reads::kShape},
    {"index_add", kThird, Reads::kShape},
    {"nll_loss_forward", kFirst, Reads::kShape},
    {"nll_loss2d_forward", kFirst, Reads::kShape},
    // Places.
    {"max_pool2d_with_indices", kResult, Reads::kPlaces, Role::kNone, nullptr, in_map},
    {"embedding", kSecond, Reads::kPlaces, Role::kNone, nullptr, rows_of_first},
    {"gather", kSecond, Reads::kPlaces, Role::kNone, nullptr, along_dimension},
    {"index_select", kSecond, Reads::kPlaces, Role::kNone, nullptr, along_dimension},
    {"index_add", kSecond, Reads::kPlaces, Role::kNone, nullptr, along_dimension},
    // Noise that is drawn after it is saved.
    {"rrelu_with_noise", kAny, Reads::kLater},
};

const Row* row_of(const RunningOp& op, const at::Tensor& t, uint32_t inputs) {
  if (!op.known) return nullptr;
  // It cannot run again from subclasses: exact sums would stand beside rounded queries.
  if (is_fused_attention(op.name) && op.arguments.empty()) return nullptr;
  std::string_view name = is_fused_attention(op.name) ? kFusedAttention : op.name;
  uint32_t place = inputs ? inputs : kResult;
  // In place the first argument is the result, and what is saved of it beforehand is a copy.
  if (name.ends_with('_')) {
    name.remove_suffix(1);
    if (place == kResult) {
      place = kFirst;
    } else if (place & kFirst) {
      place = (place & ~kFirst) | kResult;
    }
  }
  for (const Row& row : kRows) {
    // A tensor that has several places is read in all of them.
    if (row.op == name && (place & ~row.places) == 0 && (!row.when || row.when(op, t))) return &row;
  }
  return nullptr;
}

}  // namespace

Treatment by_rows(const Treatment& how, const CodeRows& apart) {
  const Spec& codec = how.first();
  if (apart.count() < 2 || how.content() != Content::kRounded || codec.has("along")) return how;
  if (apart.are_channels()) return how.by_channels();
  return apart.samples == 1 ? how.by_rows(apart.inner, apart.inner) : how.by_rows();
}

Holding holding_of(const Policy& policy, const SavedTensorOptions& options, const RunningOp* op,
                   const at::Tensor& t, const std::string& name, uint32_t inputs, bool again) {
  const Row* const row = op ? row_of(*op, t, inputs) : nullptr;
  Holding held;
  if (row) {
    held.reads = row->reads;
    held.role = row->role;
    // A product of a tensor with itself is a square; attention of a tensor to itself is not.
    if (held.reads == Reads::kNear && std::popcount(inputs) > 1 && row->places != kQkv) {
      held.reads = Reads::kNearBeside;
    }
  } else if (again && t.requires_grad()) {
    held.reads = Reads::kNear;
  }
  if (held.role == Role::kMap && !t.requires_grad()) held.role = Role::kImage;
  const auto stored = static_cast<int64_t>(t.storage().nbytes());
  const bool spread = t.numel() * t.element_size() > stored;  // a view that repeats its elements
  if (t.numel() < options.least_elements || t.is_conj() || t.is_neg() || spread ||
      held.reads == Reads::kLater) {
    return held;
  }
  const at::ScalarType type = t.scalar_type();
  const bool is_float = type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
  Treatment how = policy.slot(name, held.role);
  // A line for the role may be a treatment of segments, which does not apply here.
  if (how.storage() != Storage::kKeep && !how.codec()) how = policy.slot(name);
  const bool by_sign = held.reads == Reads::kSigns || held.reads == Reads::kShape;
  if (is_float && by_sign && (options.lossless || how.codec())) {
    held.how = how.beginning_with(Treatment::of_signs().first());
    return held;
  }
  if (options.lossless) {
    if (held.reads == Reads::kPlaces && type == at::kLong) {
      if (const int64_t limit = row->limit(*op); limit > 0) {
        held.how = how.beginning_with(Spec::parse(cat("index:limit=", limit)));
        return held;
      }
    }
    static const Treatment kPacked[] = {Treatment::parse("mask"), Treatment::parse("index")};
    for (const Treatment& packed : kPacked) {
      if (held.reads != Reads::kRelu && packed.codec()->takes(t)) {
        held.how = how.beginning_with(packed.first());
        return held;
      }
    }
  }
  if (how.storage() == Storage::kKeep) return held;
  COMPACT_CHECK(how.codec(), "slot `", name, "` = ", how.text(),
                ": tensors that autograd saves can be kept or encoded; this is for the slots of "
                "segments");
  COMPACT_CHECK(how.first().text("along", "memory") != "last", "slot `", name, "` = ", how.text(),
                ": tensors that autograd saves are encoded as they lie in memory, once for all "
                "views; along=last is for the slots of segments");
  held.refused = held.reads == Reads::kExact && how.content() != Content::kExact;
  if (!is_float || held.refused) return held;
  // The backward pass of a ReLU asks where its result is above 0, the next operation for the
  // values.
  const std::optional<Treatment> both = held.reads == Reads::kRelu ? how.with_signs() : how;
  held.how = both ? *both : how.beginning_with(Treatment::of_signs().first());
  if (row && row->scales && t.numel() > 0 && held.how.content() == Content::kRounded) {
    held.dimensions = scaling_of(row->scales, *op, t);
    held.apart = rows_of_own(held.dimensions, t);
    const Treatment apart = by_rows(held.how, held.apart);
    const auto bytes = apart.codec()->bytes(held.apart.count(), held.apart.length(), type);
    held.if_squared = row->scales == by_factor;
    // Groups of one or two values have more bytes of offsets and steps than they save.
    if (bytes && *bytes >= t.numel() * t.element_size()) {
      held.apart = {};
      held.dimensions = {};
      if (!held.if_squared) held.how = Treatment();
    }
  }
  return held;
}

}  // namespace compact
