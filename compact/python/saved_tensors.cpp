// SPDX-License-Identifier: Apache-2.0
#include "compact/python/saved_tensors.h"

#include <torch/library.h>

#include <stdexcept>

#include "compact/base/check.h"
#include "compact/python/draw_key.h"

namespace compact {
namespace {

Policy checked(const std::string& policy, int64_t least_elements) {
  COMPACT_CHECK(least_elements >= 0, "[saved_tensors] least_elements must be at least 0, is ",
                least_elements);
  return Policy::parse(policy, "policy");
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
    : draws_(checked(policy, least_elements).has(PolicyKind::kSlot)),
      store_(Policy::parse(policy, "policy"),
             {.least_elements = least_elements, .lossless = lossless.value_or(draws_)}) {}

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
               draws_ ? draw_key() : 0);
  thread_ = std::this_thread::get_id();
  watch_ = std::make_unique<OpWatch>();
}

void SavedTensors::leave() {
  const std::lock_guard lock(mutex_);
  if (!watch_) return;
  if (thread_ != std::this_thread::get_id()) {
    throw std::logic_error("[saved_tensors] it must end on the thread that it began on");
  }
  watch_.reset();
  store_.forget();
}

c10::intrusive_ptr<HeldSavedTensor> SavedTensors::pack(const at::Tensor& t) {
  try {
    return c10::make_intrusive<HeldSavedTensor>(store_.pack(t));
  } catch (const InputError& error) {
    // Python sees any other error of a method as a RuntimeError.
    TORCH_CHECK_VALUE(false, error.what());
  }
}

std::vector<SavedTensors::Row> SavedTensors::report() const {
  std::vector<Row> rows;
  for (const SavedTensor& t : store_.report().tensors) {
    rows.emplace_back(t.name, t.parameter ? "parameter" : t.treatment.text(), t.sizes,
                      std::string(c10::getDtypeNames(t.type).first), t.bytes, t.stored, t.shared,
                      t.parameter);
  }
  return rows;
}

std::tuple<int64_t, int64_t, int64_t> SavedTensors::bytes() const {
  const SavedTensorReport report = store_.report();
  return {report.bytes(), report.stored(), store_.live_bytes()};
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
      .def("report", &SavedTensors::report)
      .def("bytes", &SavedTensors::bytes);
}
