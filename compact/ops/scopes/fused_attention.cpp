// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "compact/ops/scopes/fused_attention_impl.h"

namespace compact {
namespace {

bool is_same(const at::Tensor& a, const at::Tensor& b) {
  return a.is_same(b) || (a.defined() && b.defined() && storage_of(a) == storage_of(b) &&
                          storage_of(a) && a.storage_offset() == b.storage_offset() &&
                          a.sizes() == b.sizes() && a.strides() == b.strides() &&
                          a.scalar_type() == b.scalar_type() && a.is_neg() == b.is_neg());
}

int64_t version_of(const at::Tensor& t) { return t.is_inference() ? 0 : t._version(); }

}  // namespace

FusedAttention::FusedAttention(const RunningOp& op)
    : op_(c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + op.name).c_str(),
                                                         op.overload.c_str())),
      arguments_(op.arguments),
      held_(op.arguments.size()),
      versions_(op.arguments.size()) {
  const std::vector<c10::Argument>& taken = op_.schema().arguments();
  for (size_t i = 0; i < arguments_.size(); ++i) {
    by_name_.push_back(i);
    c10::IValue& argument = arguments_[i];
    const std::string& name = taken[i].name();
    if (argument.isTensor() && argument.toTensor().defined()) {
      argument = argument.toTensor().detach();  // so that no graph is held
      versions_[i] = version_of(argument.toTensor());
    } else if (name == "dropout_p") {
      dropout_ = argument.toDouble() > 0;
      argument = 0.0;
    } else if (name == "compute_log_sumexp") {
      argument = true;
    } else if (name == "return_debug_mask") {  // only dropout needs it
      argument = false;
    }
  }
  // Autograd saves inputs in the order of their names.
  std::ranges::sort(by_name_, {}, [&](size_t i) { return taken[i].name(); });
  query_ = arguments_[0].toTensor().sizes().vec();
  value_ = arguments_[2].toTensor().sizes().vec();
}

void FusedAttention::note(const at::Tensor& t, const HeldTensor& held) {
  for (const size_t i : by_name_) {
    if (!arguments_[i].isTensor() || !is_same(arguments_[i].toTensor(), t)) continue;
    held_[i] = held;
    arguments_[i] = {};
    return;
  }
}

bool FusedAttention::rounds_scores() const {
  return held_[0].is_rounded() || held_[1].is_rounded();
}

bool FusedAttention::is_values(const at::Tensor& result) const {
  return result.dim() == static_cast<int64_t>(query_.size()) && result.size(-1) == value_.back() &&
         result.size(-2) == query_[query_.size() - 2];
}

bool FusedAttention::can_make(const at::Tensor& result) const {
  return at::isFloatingType(result.scalar_type()) && !(dropout_ && is_values(result));
}

at::Tensor FusedAttention::make(bool values) const {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  at::Tensor& wanted = values ? values_ : logarithms_;
  // Since the last call another operation may have had one of them held whole.
  const std::array rounds{held_[0].is_rounded(), held_[1].is_rounded(), held_[2].is_rounded()};
  if (!wanted.defined() || rounds != made_of_) {
    torch::jit::Stack stack = arguments_;
    for (size_t i = 0; i < stack.size(); ++i) {
      if (held_[i].defined()) {
        stack[i] = held_[i].unpack();
      } else if (stack[i].isTensor() && stack[i].toTensor().defined()) {
        TORCH_CHECK(version_of(stack[i].toTensor()) == versions_[i],
                    "[saved tensors] an argument of attention that its backward pass needs was "
                    "changed in place: ",
                    stack[i].toTensor().sizes());
      }
    }
    op_.callBoxed(stack);
    if (!dropout_) values_ = stack[0].toTensor();
    logarithms_ = stack[1].toTensor();
    made_of_ = rounds;
  }
  return std::exchange(wanted, {});
}

}  // namespace compact
