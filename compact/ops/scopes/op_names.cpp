// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/scopes/op_names.h"

namespace compact {
namespace {

thread_local std::vector<RunningOp> running;
thread_local uint64_t calls = 0;

struct Leave final : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& f) {
  RunningOp op{.serial = ++calls};
  const std::string_view name = f.name();
  op.name = name.substr(name.rfind(':') == name.npos ? 0 : name.rfind(':') + 1);
  for (const c10::IValue& value : f.inputs()) {
    if (value.isTensor()) {
      if (op.inputs.empty() && value.toTensor().defined())
        op.sizes = value.toTensor().sizes().vec();
      op.inputs.push_back(storage_of(value.toTensor()));
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) op.inputs.push_back(storage_of(t));
    } else if (value.isInt() && !op.number) {
      op.number = value.toInt();
    }
  }
  running.push_back(std::move(op));
  return std::make_unique<Leave>();
}

void leave(const at::RecordFunction&, at::ObserverContext*) {
  if (!running.empty()) running.pop_back();
}

}  // namespace

OpWatch::OpWatch()
    : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(enter, leave)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION}))) {}

OpWatch::~OpWatch() {
  at::removeCallback(handle_);
  running.clear();
}

const RunningOp* OpWatch::current() { return running.empty() ? nullptr : &running.back(); }

const void* storage_of(const at::Tensor& t) {
  return t.defined() && t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace compact
