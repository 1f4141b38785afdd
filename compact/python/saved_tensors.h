// SPDX-License-Identifier: Apache-2.0
// Both halves of Python's hooks of saved tensors, as methods of torchbind classes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "compact/ops/scopes/op_names.h"
#include "compact/ops/scopes/saved_tensor_store.h"

namespace compact {

// Held by a graph in place of a tensor. It gives it back by a method of its own, since a
// torchbind object costs more as an argument than as self.
class HeldSavedTensor final : public torch::CustomClassHolder {
 public:
  explicit HeldSavedTensor(HeldTensor held) : held_(std::move(held)) {}
  at::Tensor unpack() const { return held_.unpack(); }

 private:
  HeldTensor held_;
};

// Forward passes of one thread at a time, one after another.
class SavedTensors final : public torch::CustomClassHolder {
 public:
  // `policy`: the text of one. `lossless`: null: where it has lines of slots. Throws InputError
  // where it is not a policy, or a number is out of range.
  SavedTensors(const std::string& policy, int64_t least_elements, std::optional<bool> lossless);

  // From here to leave() operations of this thread have names. Random bits of codecs follow from
  // the state that torch's generator for the CPU has here; what the pass draws from it is what it
  // would draw without codecs. Throws std::logic_error where a pass has begun and not ended.
  void enter(const std::vector<std::string>& parameter_names,
             const std::vector<at::Tensor>& parameters,
             const std::vector<std::string>& buffer_names, const std::vector<at::Tensor>& buffers);
  // On the thread that entered. Where the pass has rounded, the generator moves on by one number,
  // so that the next one rounds otherwise.
  void leave();

  // pack_again: what a checkpoint computes from a second time. Throw c10::ValueError where the
  // store throws InputError.
  c10::intrusive_ptr<HeldSavedTensor> pack(const at::Tensor& t) { return held(t, false); }
  c10::intrusive_ptr<HeldSavedTensor> pack_again(const at::Tensor& t) { return held(t, true); }
  // Makes a small tensor again; nullopt: it cannot, and Python keeps the tensor.
  std::optional<c10::intrusive_ptr<HeldSavedTensor>> pack_small(const at::Tensor& t);

  // A tensor of the last pass: name, role or nothing, treatment, sizes, type, bytes, stored,
  // whether its memory was saved before, whether it is a parameter, and the operation for which it
  // is kept.
  using Row = std::tuple<std::string, std::string, std::string, std::vector<int64_t>, std::string,
                         int64_t, int64_t, bool, bool, std::string>;
  std::vector<Row> report() const;
  // How many operations of the last pass ran inside of other hooks, which got what they saved.
  int64_t under_other_hooks() const;
  // Bytes of the last pass, as they are and as they are held; those that live, of any pass; those
  // that are rebuilt at a time for a budget.
  std::tuple<int64_t, int64_t, int64_t, int64_t> bytes() const;

 private:
  c10::intrusive_ptr<HeldSavedTensor> held(const at::Tensor& t, bool again);

  SavedTensorStore store_;
  mutable std::mutex mutex_;
  int64_t others_ = 0;
  std::thread::id thread_;  // that entered
  std::unique_ptr<OpWatch> watch_;
};

}  // namespace compact
