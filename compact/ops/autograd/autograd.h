// SPDX-License-Identifier: Apache-2.0
// The common part of our autograd nodes: making and connecting them, refusing changed tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace compact {

// torch owns nodes by std::shared_ptr up to 2.12 and by c10::intrusive_ptr since.
using NodePtr = decltype(torch::autograd::Edge::function);

// A template, so that the branch for the other kind of pointer is not compiled.
template <class Pointer>
Pointer own_node(torch::autograd::Node* node) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return Pointer(node, [](auto* n) { deleteNode(n); });
  } else {
    return Pointer::unsafe_steal_from_new(node);
  }
}

template <class T, class... Args>
NodePtr make_node(Args&&... args) {
  return own_node<NodePtr>(new T(std::forward<Args>(args)...));
}

// Edges of `node` to the producers of `inputs`, in order; an input without gradient gets none.
void connect(const NodePtr& node, std::span<const at::Tensor> inputs);

// While it lives, autocast does not reach what runs in this thread: inside our nodes the type of
// the weights decides.
struct NoAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

// Throws InputError on a tensor that our nodes cannot read or differentiate: one of functorch, with
// a forward-mode tangent, of a subclass with its own dispatch, sparse or negated.
void check_plain(const char* who, const at::Tensor& t);

bool any_requires_grad(std::span<const at::Tensor> tensors);

// Sum of elements times element size; undefined tensors count nothing.
int64_t bytes_of(std::span<const at::Tensor> tensors);

// alone: no other tensor shares its memory, which may be overwritten. owned: alone and contiguous.
bool alone(const at::Tensor& t);
bool owned(const at::Tensor& t);

// Remembers versions of tensors that a backward pass will read, and where their memory is.
class VersionCheck {
 public:
  void add(const at::Tensor& t);
  // Throws where one was changed in place since, or given other memory (`t.data = ...`). `of`: a
  // block's name, for the message.
  void check(const char* who, std::string_view of = {}) const;

 private:
  struct Added {
    at::Tensor value;  // an alias: shares the version counter, keeps the memory of that time
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    uint32_t version;
  };
  std::vector<Added> added_;
};

}  // namespace compact
