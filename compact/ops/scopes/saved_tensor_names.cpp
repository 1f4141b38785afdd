// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/scopes/saved_tensor_names_impl.h"

#include "compact/base/check.h"
#include "compact/ops/scopes/op_names.h"

namespace compact {

SavedTensorNames::SavedTensorNames(std::span<const std::pair<std::string, at::Tensor>> parameters) {
  for (const auto& [name, tensor] : parameters) parameters_.emplace(storage_of(tensor), name);
}

bool SavedTensorNames::is_parameter(const at::Tensor& t) const {
  return parameters_.contains(storage_of(t));
}

SavedTensorNames::Name SavedTensorNames::next(const at::Tensor& t) {
  const RunningOp* const op = OpWatch::current();
  if (!op) return {cat(nearest_, "~", ++since_, ".tensor")};
  std::string place = "result";
  bool result = true;
  const void* const storage = storage_of(t);
  const std::string* parameter = nullptr;
  for (size_t i = 0; i < op->inputs.size(); ++i) {
    const auto found = parameters_.find(op->inputs[i]);
    if (found != parameters_.end() && !parameter) parameter = &found->second;
    if (op->inputs[i] == storage && storage) {
      result = false;
      place = i == 0 ? "input" : cat("input", i);
    }
  }
  if (parameter) {
    const size_t dot = parameter->rfind('.');
    nearest_ = dot == std::string::npos ? *parameter : parameter->substr(0, dot);
    since_ = 0;
  } else if (last_op_ != op->serial) {
    ++since_;
  }
  last_op_ = op->serial;
  std::string name = since_ ? cat(nearest_, "~", since_) : nearest_;
  name += "." + op->name + "." + place;
  const int64_t before = repeated_[name]++;
  return {before ? cat(name, "@", before + 1) : name, result};
}

}  // namespace compact
