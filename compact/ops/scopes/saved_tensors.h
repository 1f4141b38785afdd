// SPDX-License-Identifier: Apache-2.0
// Any LibTorch network with its saved tensors held by codecs (GACT, arXiv 2206.11357):
//
//   compact::SavedTensorScope scope(compact::Policy::preset("gact-l1"));
//   at::Tensor loss = network->forward(x);   // any module
//   loss.backward();                         // inside or outside the scope
//
// While a scope lives, tensors that autograd saves on this thread go through the innermost one.
// Codecs round only what the backward pass of an operation reads linearly or smoothly, as a table
// says (saved_tensor_rules.cpp); tensors of other operations are kept, and the report names these.
// Tensors with a NaN or an infinity are kept; on a GPU, where asking would make it wait, 256
// neighbours of one read back as NaN. A scope ends on the thread it began on. Not for a Python
// process, which has hooks of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compact/ops/policy/policy.h"

namespace compact {

struct SavedTensorOptions {
  // The network's parameters, with the names that identities begin with. What is named here is
  // never encoded, nor anything that requires gradients as a leaf, its views and casts. Frozen
  // weights and buffers that operations save are known by their names only. An empty name: a tensor
  // that the caller holds, as a batch; operations are not named after it.
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  // Never encoded either. A copy of a parameter in another type is held as the parameter, and made
  // again; a copy of a buffer, which a forward pass may change, is kept.
  std::vector<std::pair<std::string, at::Tensor>> buffers = {};
  int64_t least_elements = 1024;  // smaller tensors are kept
  bool lossless = true;           // bits for booleans and two values; narrow indices
  uint64_t noise = 0;             // key of stochastic rounding; to differ from step to step
};

// One tensor that autograd saved.
struct SavedTensor {
  std::string name;         // layer1.0.conv1.convolution.input
  Role role = Role::kNone;  // by which policies may name it, too
  Treatment treatment;      // keep, or codecs
  bool parameter = false;   // held by its network: no memory of its own
  std::vector<int64_t> sizes;
  at::ScalarType type = at::kFloat;
  int64_t bytes = 0;    // of the tensor
  int64_t stored = 0;   // held for it; 0 where it shares the memory of another or of a parameter
  bool shared = false;  // the same memory was saved before
  // It is kept though the policy says codecs, since this operation reads its values exactly.
  std::string exact_for;
};

struct SavedTensorReport {
  std::vector<SavedTensor> tensors;  // in the order of saving
  int64_t bytes() const;             // distinct tensors, parameters excluded, as they are
  int64_t stored() const;
  int64_t span = 0;  // at most so many bytes are rebuilt at a time for a budget
  // Bytes that are kept though the policy says codecs, by the operations that read them exactly.
  std::map<std::string, int64_t> exact_for() const;
};

class SavedTensorScope {
 public:
  // Slots of `policy` are matched with identities NEAREST_PARAMETER.OP.PLACE and with roles of
  // convolutional networks. Throws InputError where a tensor's name has a treatment other than keep
  // and codecs. Throws std::logic_error in a process that has another autograd engine (Python).
  explicit SavedTensorScope(Policy policy, SavedTensorOptions options = {});
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;

  // The tensors saved since the scope began.
  SavedTensorReport report() const;
  // Bytes held by graphs of this scope that still live, parameters excluded: 0 once they are gone.
  int64_t live_bytes() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace compact
