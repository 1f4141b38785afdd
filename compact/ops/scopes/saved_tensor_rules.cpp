// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/scopes/saved_tensor_rules_impl.h"

#include <algorithm>

#include "compact/base/check.h"

namespace compact {
namespace {

// What the operation promises integers to be below; 0: nothing.
int64_t index_limit(const RunningOp& op, const at::Tensor& t, bool result) {
  if (op.sizes.empty() || t.scalar_type() != at::kLong) return 0;
  // Positions in the input's map.
  if (result && op.name.starts_with("max_pool2d") && op.sizes.size() >= 2) {
    return op.sizes[op.sizes.size() - 2] * op.sizes.back();
  }
  // Places along a dimension of the first argument; none may be negative.
  if (result) return 0;
  if (op.name == "embedding") return op.sizes.front();
  const std::string along[] = {"index_select", "index_add", "index_add_", "gather"};
  if (std::ranges::find(along, op.name) == std::end(along) || !op.number) return 0;
  const auto dimensions = static_cast<int64_t>(op.sizes.size());
  return op.sizes[static_cast<size_t>((*op.number + dimensions) % dimensions)];
}

// Statistics of norms and softmaxes: little memory, and not linear in the gradient.
bool is_statistic(const RunningOp& op, const at::Tensor& t, bool result) {
  const auto has = [&](const char* part) { return op.name.find(part) != std::string::npos; };
  if (op.name == "graph_attention") return t.dim() == 2;  // scores, from which weights are rebuilt
  return result &&
         (has("norm") || has("log_softmax") || (has("scaled_dot_product") && t.dim() < 4));
}

}  // namespace

Treatment treatment_of(const Policy& policy, const SavedTensorOptions& options, const RunningOp* op,
                       const at::Tensor& t, const std::string& name, bool result) {
  static const RunningOp kNone;
  static const Treatment kKeep;
  if (!op) op = &kNone;
  const at::ScalarType type = t.scalar_type();
  const bool is_float = type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
  const auto stored = static_cast<int64_t>(t.storage().nbytes());
  const bool spread = t.numel() * t.element_size() > stored;  // a view that repeats its elements
  if (t.numel() < options.least_elements || t.is_conj() || t.is_neg() || spread) return kKeep;
  if (is_statistic(*op, t, result)) return kKeep;
  if (op->name.starts_with("rrelu")) return kKeep;  // fills its noise once that is saved
  const Treatment how = policy.slot(name);
  const Spec& signs = Treatment::of_signs().first();
  const bool relu = is_float && ((op->name == "relu" && result) || op->name == "relu_");
  if (options.lossless) {
    // Its backward pass asks for nothing but which side of 0 its input is on.
    if (is_float && !result && op->name == "leaky_relu") return how.beginning_with(signs);
    const int64_t limit = index_limit(*op, t, result);
    if (limit > 0) return how.beginning_with(Spec::parse(cat("index:limit=", limit)));
    static const Treatment kExact[] = {Treatment::parse("mask"), Treatment::parse("index")};
    for (const Treatment& exact : kExact) {
      if (!relu && exact.codec()->takes(t)) return how.beginning_with(exact.first());
    }
  }
  if (!is_float || how.storage() == Storage::kKeep) return kKeep;
  COMPACT_CHECK(how.codec(), "slot `", name, "` = ", how.text(),
                ": tensors that autograd saves can be kept or encoded; this is for the slots of "
                "segments");
  COMPACT_CHECK(how.first().text("along", "memory") == "memory", "slot `", name, "` = ", how.text(),
                ": tensors that autograd saves are encoded as they lie in memory, once for all "
                "views; along=last is for the slots of segments");
  // The backward pass of a ReLU asks where its result is above 0, the next operation for the
  // values.
  if (!relu) return how;
  const std::optional<Treatment> both = how.with_signs();
  return both ? *both : how.beginning_with(signs);
}

}  // namespace compact
