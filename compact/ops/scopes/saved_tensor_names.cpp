// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/scopes/saved_tensor_names_impl.h"

#include <algorithm>

#include "compact/base/check.h"
#include "compact/ops/scopes/op_names.h"

namespace compact {

SavedTensorNames::SavedTensorNames(Named parameters, Named buffers) {
  for (const bool buffer : {false, true}) {
    for (const auto& [name, tensor] : buffer ? buffers : parameters) {
      if (const void* const storage = storage_of(tensor)) {
        known_.emplace(storage, Known{name, tensor, buffer});
      }
    }
  }
}

const SavedTensorNames::Known* SavedTensorNames::find(const void* storage) const {
  const auto found = known_.find(storage);
  return found == known_.end() ? nullptr : &found->second;
}

bool SavedTensorNames::is_buffer(const void* storage) const {
  const Known* const known = find(storage);
  return known && known->buffer;
}

std::optional<std::pair<std::string, at::Tensor>> SavedTensorNames::parameter(
    const void* storage) const {
  const Known* const known = find(storage);
  if (!known || known->buffer) return std::nullopt;
  return std::pair(known->name, known->tensor);
}

SavedTensorNames::Name SavedTensorNames::next(const at::Tensor& t) {
  const RunningOp* const op = OpWatch::current();
  if (!op) return {cat(nearest_, "~", ++since_, ".tensor")};
  std::string place = "result";
  uint32_t inputs = 0;
  const void* const storage = storage_of(t);
  const std::string* parameter = nullptr;
  for (size_t i = 0; i < op->inputs.size(); ++i) {
    const Known* known = find(op->inputs[i]);
    if (!known) known = find(OpWatch::source_of(op->inputs[i]));
    if (known && !parameter && !known->name.empty()) parameter = &known->name;
    if (op->inputs[i] == storage && storage) {
      inputs |= 1u << std::min<size_t>(i, 30);
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
  return {before ? cat(name, "@", before + 1) : name, inputs};
}

}  // namespace compact
