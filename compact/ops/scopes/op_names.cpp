// SPDX-License-Identifier: Apache-2.0
#include "compact/ops/scopes/op_names.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <utility>

#include "compact/ops/scopes/op_tape_impl.h"

namespace compact {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct Copy {
  // Keeps the address from being reused.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  uint32_t version;  // of the copy
  WeakTensor source;
  const void* source_storage;
  uint32_t source_version;
  int64_t source_offset;
  at::ScalarType type;
  std::vector<int64_t> sizes, strides;
};

// References into it stay valid while operations begin and end inside of one.
thread_local std::deque<RunningOp> running;
thread_local uint64_t calls = 0;
thread_local int watches = 0;
thread_local at::CallbackHandle callback = 0;  // of all of them
thread_local bool as_one = false;              // no watcher sees operations for now
thread_local std::vector<OpTape*> tapes;
thread_local size_t own_hooks = 0;
thread_local int64_t others = 0;                            // operations inside of other hooks
thread_local std::unordered_map<const void*, Copy> copies;  // by their storages
thread_local size_t copies_to_sweep = 64;

// Notes on an operation from its begin to its end.
struct Noted final : at::ObserverContext {
  at::Tensor copied;  // by a copy that is being made
  uint32_t version = 0;
  c10::SmallVector<std::pair<OpTape*, std::unique_ptr<OpTape::Call>>, 1> calls;
};

void begin_on_tapes(const at::RecordFunction& f, RunningOp& op,
                    c10::ArrayRef<const c10::IValue> inputs, std::unique_ptr<Noted>& noted) {
  const OpRule* const rule = op.is_operator ? rule_of(f) : nullptr;
  // Another library's composite may write what it makes by kernels that PyTorch does not see.
  op.is_opaque = !op.is_operator || (rule && !rule->leaf && !op.known);
  if (op.is_opaque) {
    for (OpTape* const tape : tapes) tape->begin_opaque();
    return;
  }
  if (!rule || !rule->leaf || is_cast(*rule, inputs)) return;
  for (OpTape* const tape : tapes) {
    std::unique_ptr<OpTape::Call> call = tape->begin(*rule, inputs);
    if (!call) continue;
    if (!noted) noted = std::make_unique<Noted>();
    noted->calls.emplace_back(tape, std::move(call));
  }
}

bool has_sizes(const at::Tensor& t) {
  return t.defined() && !t.is_nested() && !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

bool plain(const at::Tensor& t) {
  return has_sizes(t) && t.layout() == at::kStrided && t.has_storage() && !t.is_inference() &&
         !t.unsafeGetTensorImpl()->is_python_dispatch();
}

// Whether the first `count` are tensors that any operation can read.
bool are_plain(c10::ArrayRef<const c10::IValue> values, size_t count) {
  return values.size() >= count &&
         std::ranges::all_of(values.slice(0, count), [](const auto& value) {
           return value.isTensor() && plain(value.toTensor()) &&
                  !value.toTensor().key_set().has_any(c10::functorch_transforms_ks);
         });
}

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& f) {
  RunningOp& op = running.emplace_back();
  op.serial = ++calls;
  std::unique_ptr<Noted> noted;
  const bool hooked = running.size() == 1 && c10::GradMode::is_enabled() &&
                      at::SavedTensorDefaultHooks::get_tls_state().stack.size() > own_hooks;
  bool differentiable = false;
  const std::string_view name = f.name();
  // A boxed call shows the caller's whole stack; its own arguments are the last ones.
  const c10::ArrayRef<const c10::IValue> all = f.inputs();
  const c10::ArrayRef<const c10::IValue> inputs =
      all.slice(all.size() - std::min(all.size(), f.num_inputs()));
  op.name = name.substr(name.rfind(':') == name.npos ? 0 : name.rfind(':') + 1);
  // A function without a schema, as in Python, has any name that its author chose.
  if (const std::optional<c10::OperatorName> schema = f.operator_name()) {
    op.is_operator = true;
    op.known = name.starts_with("aten::");
    op.overload = schema->overload_name;
    if (op.known && is_fused_attention(op.name) && are_plain(inputs, 3)) {
      op.arguments.assign(inputs.begin(), inputs.end());
    }
  } else {
    op.known = name.starts_with("compact::");
  }
  for (const c10::IValue& value : inputs) {
    if (value.isTensor()) {
      const at::Tensor& t = value.toTensor();
      if (op.inputs.empty() && has_sizes(t)) op.sizes = t.sizes();
      if (const size_t i = op.inputs.size(); i < op.values.size() && has_sizes(t)) {
        op.values[i] = t.sizes();
        for (int64_t d = 0; t.layout() == at::kStrided && d < t.dim(); ++d) {
          if (t.stride(d) == 0) op.values[i][static_cast<size_t>(d)] = 1;
        }
      }
      if (op.inputs.empty() && op.known && op.name == "_to_copy" && plain(t)) {
        noted = std::make_unique<Noted>();
        noted->copied = t;
        noted->version = static_cast<uint32_t>(t._version());
      }
      op.inputs.push_back(storage_of(t));
      differentiable |= hooked && t.requires_grad();
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) op.inputs.push_back(storage_of(t));
    } else if (value.isIntList() && op.list.empty()) {
      op.list = value.toDimVector();
    } else if (value.isInt() || value.isDouble()) {
      op.numbers.push_back(value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble());
    }
  }
  others += differentiable;
  if (!tapes.empty()) begin_on_tapes(f, op, inputs, noted);
  return noted;
}

void note_copy(const Noted& copying, const at::RecordFunction& f) {
  if (f.outputs().size() != 1 || !f.outputs()[0].isTensor()) return;
  const at::Tensor& t = f.outputs()[0].toTensor();
  if (!plain(t) || t.storage_offset() != 0 || t.device() != copying.copied.device()) return;
  // Nothing notifies us when copies are gone, so they are swept now and then.
  if (copies.size() >= copies_to_sweep) {
    std::erase_if(copies, [](const auto& entry) { return entry.second.storage.expired(); });
    copies_to_sweep = std::max<size_t>(64, 2 * copies.size());
  }
  copies.insert_or_assign(
      storage_of(t), Copy{t.storage().getWeakStorageImpl(), static_cast<uint32_t>(t._version()),
                          WeakTensor(copying.copied.getIntrusivePtr()), storage_of(copying.copied),
                          copying.version, copying.copied.storage_offset(), t.scalar_type(),
                          t.sizes().vec(), t.strides().vec()});
}

void leave(const at::RecordFunction& f, at::ObserverContext* context) {
  if (running.empty()) return;
  if (running.back().is_opaque) {
    for (OpTape* const tape : tapes) tape->end_opaque();
  }
  running.pop_back();
  if (!context) return;
  auto& noted = *static_cast<Noted*>(context);
  if (noted.copied.defined()) note_copy(noted, f);
  const c10::ArrayRef<const c10::IValue> results(f.outputs().data(), f.outputs().size());
  for (auto& [tape, call] : noted.calls) {
    if (std::ranges::find(tapes, tape) != tapes.end()) tape->end(std::move(call), results);
  }
}

}  // namespace

OpWatch::OpWatch(std::shared_ptr<OpTape> tape, size_t hooks)
    : tape_(std::move(tape)), hooks_before_(own_hooks), others_before_(others) {
  if (watches++ == 0) {
    callback = at::addThreadLocalCallback(at::RecordFunctionCallback(enter, leave)
                                              .needsInputs(true)
                                              .needsOutputs(true)
                                              .scopes({at::RecordScope::FUNCTION}));
  }
  if (tape_) tapes.push_back(tape_.get());
  own_hooks = hooks;
  others = 0;
}

OpWatch::AsOne::AsOne() : watched_(watches > 0 && !std::exchange(as_one, true)) {
  if (watched_) at::disableCallback(callback);
}

OpWatch::AsOne::~AsOne() {
  if (!watched_) return;
  at::reenableCallback(callback);
  as_one = false;
}

void OpWatch::AsOne::made(const at::Tensor& t) {
  for (OpTape* const tape : tapes) tape->note_made(t);
}

int64_t OpWatch::under_other_hooks() { return others; }

OpWatch::~OpWatch() {
  std::erase(tapes, tape_.get());
  own_hooks = hooks_before_;
  others = others_before_;
  if (--watches > 0) return;
  at::removeCallback(callback);
  running.clear();
  copies.clear();
}

const RunningOp* OpWatch::current() { return running.empty() ? nullptr : &running.back(); }

const void* OpWatch::source_of(const void* storage) {
  const auto found = copies.find(storage);
  return found == copies.end() ? nullptr : found->second.source_storage;
}

std::optional<CopiedFrom> OpWatch::copied_from(const at::Tensor& t) {
  const auto found = copies.find(storage_of(t));
  if (found == copies.end()) return std::nullopt;
  const Copy& copy = found->second;
  auto alive = copy.source.lock();
  if (!alive || t._version() != copy.version) return std::nullopt;
  at::Tensor source(std::move(alive));
  // `w.data = other` gives it another storage and leaves the version.
  if (source._version() != copy.source_version || storage_of(source) != copy.source_storage ||
      source.storage_offset() != copy.source_offset || source.sizes() != copy.sizes) {
    return std::nullopt;
  }
  return CopiedFrom{std::move(source), copy.type, copy.sizes, copy.strides};
}

bool is_fused_attention(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "_scaled_dot_product_flash_attention_for_cpu",
      "_scaled_dot_product_flash_attention",
      "_scaled_dot_product_efficient_attention",
      "_scaled_dot_product_cudnn_attention",
      "_scaled_dot_product_fused_attention_overrideable",
      "_flash_attention_forward",
      "_efficient_attention_forward",
  };
  return std::ranges::find(kNames, name) != std::end(kNames);
}

const void* storage_of(const at::Tensor& t) {
  return t.defined() && t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace compact
