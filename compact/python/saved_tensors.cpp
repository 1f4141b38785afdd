// SPDX-License-Identifier: Apache-2.0
#include "compact/python/saved_tensors.h"

#include <ATen/SavedTensorHooks.h>
#include <torch/library.h>

#include <stdexcept>

#include "compact/base/check.h"
#include "compact/python/draw_key.h"

namespace compact {
namespace {

SavedTensorOptions checked(int64_t least_elements, bool lossless) {
  COMPACT_CHECK(least_elements >= 0, "[saved_tensors] least_elements must be at least 0, is ",
                least_elements);
  return {.parameters = {}, .least_elements = least_elements, .lossless = lossless};
}

SavedTensorStore::Named named(const std::vector<std::string>& names,
                              const std::vector<at::Tensor>& tensors) {
  COMPACT_CHECK(names.size() == tensors.size(), "[saved_tensors] a name for each tensor is needed");
  SavedTensorStore::Named all;
  all.reserve(names.size());
  for (size_t i = 0; i < names.size(); ++i) all.emplace_back(names[i], tensors[i]);
  return all;
}

}  // namespace

SavedTensors::SavedTensors(const std::string& policy, int64_t least_elements,
                           std::optional<bool> lossless)
    : store_(Policy::parse(policy, "policy"),
             checked(least_elements,
                     lossless.value_or(Policy::parse(policy, "policy").has(PolicyKind::kSlot)))) {}

void SavedTensors::enter(const std::vector<std::string>& parameter_names,
                         const std::vector<at::Tensor>& parameters,
                         const std::vector<std::string>& buffer_names,
                         const std::vector<at::Tensor>& buffers) {
  const std::lock_guard lock(mutex_);
  if (watch_) {
    throw std::logic_error(
        "[saved_tensors] it is in force already; each thread and each pass inside of another "
        "needs one of its own");
  }
  store_.begin(named(parameter_names, parameters), named(buffer_names, buffers),
               derive(next_key(), label_of("saved_tensors", 13)));
  thread_ = std::this_thread::get_id();
  // Python puts its own hooks above all others once this returns.
  watch_ = std::make_unique<OpWatch>(store_.tape(),
                                     at::SavedTensorDefaultHooks::get_tls_state().stack.size() + 1);
}

void SavedTensors::leave() {
  const std::lock_guard lock(mutex_);
  if (!watch_) return;
  if (thread_ != std::this_thread::get_id()) {
    throw std::logic_error("[saved_tensors] it must end on the thread that it began on");
  }
  others_ = OpWatch::under_other_hooks();
  watch_.reset();
  if (store_.rounded()) draw_key();
  store_.forget();
}

c10::intrusive_ptr<HeldSavedTensor> SavedTensors::held(const at::Tensor& t, bool again) {
  try {
    return c10::make_intrusive<HeldSavedTensor>(store_.pack(t, again));
  } catch (const InputError& error) {
    // Python sees any other error of a method as a RuntimeError.
    TORCH_CHECK_VALUE(false, error.what());
  }
}

std::optional<c10::intrusive_ptr<HeldSavedTensor>> SavedTensors::pack_small(const at::Tensor& t) {
  std::optional<HeldTensor> held = store_.pack_made_again(t);
  if (!held) return std::nullopt;
  return c10::make_intrusive<HeldSavedTensor>(std::move(*held));
}

std::vector<SavedTensors::Row> SavedTensors::report() const {
  std::vector<Row> rows;
  for (const SavedTensor& t : store_.report().tensors) {
    rows.emplace_back(t.name, t.role == Role::kNone ? "" : name_of(t.role),
                      t.parameter ? "parameter" : t.treatment.text(), t.sizes,
                      std::string(c10::getDtypeNames(t.type).first), t.bytes, t.stored, t.shared,
                      t.parameter, t.exact_for);
  }
  return rows;
}

int64_t SavedTensors::under_other_hooks() const {
  const std::lock_guard lock(mutex_);
  return watch_ ? OpWatch::under_other_hooks() : others_;
}

std::tuple<int64_t, int64_t, int64_t, int64_t> SavedTensors::bytes() const {
  const SavedTensorReport report = store_.report();
  return {report.bytes(), report.stored(), store_.live_bytes(), report.span};
}

}  // namespace compact

TORCH_LIBRARY_FRAGMENT(compact, m) {
  using namespace compact;
  m.class_<HeldSavedTensor>("HeldSavedTensor").def("unpack", &HeldSavedTensor::unpack);
  m.class_<SavedTensors>("SavedTensors")
      .def(torch::init<const std::string&, int64_t, std::optional<bool>>())
      .def("enter", &SavedTensors::enter)
      .def("leave", &SavedTensors::leave)
      .def("pack", &SavedTensors::pack)
      .def("pack_again", &SavedTensors::pack_again)
      .def("pack_small", &SavedTensors::pack_small)
      .def("report", &SavedTensors::report)
      .def("under_other_hooks", &SavedTensors::under_other_hooks)
      .def("bytes", &SavedTensors::bytes);
}
