// SPDX-License-Identifier: Apache-2.0
// What our autograd nodes share: making and connecting them, refusing tensors changed in place.
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

// Throws InputError where a tensor is none whose memory our nodes can read and write, and whose
// derivatives they give: one of functorch or of forward-mode differentiation, or a subclass with a
// dispatch of its own.
void check_plain(const char* who, const at::Tensor& t);

bool any_requires_grad(std::span<const at::Tensor> tensors);

// Sum of elements times element size; undefined tensors count nothing.
int64_t bytes_of(std::span<const at::Tensor> tensors);

// True where nobody else can see the tensor's memory, so that it may be written in place; owned:
// and its elements lie in order.
bool alone(const at::Tensor& t);
bool owned(const at::Tensor& t);

// Remembers versions of tensors that a backward pass will read, and where their memory is.
class VersionCheck {
 public:
  void add(const at::Tensor& t);
  // Throws where one was changed in place since, or given other memory (`t.data = ...`).
  void check(const char* who) const;

 private:
  struct Seen {
    at::Tensor value;  // of its version and memory then, whatever becomes of the tensor
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    uint32_t version;
  };
  std::vector<Seen> seen_;
};

}  // namespace compact
