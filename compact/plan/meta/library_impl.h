// SPDX-License-Identifier: Apache-2.0
// Implementations for the meta device of operations that lack one in LibTorch's C++.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>

namespace compact {

class MetaLibrary {
 public:
  MetaLibrary()
      : library_(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__) {}

  // Where LibTorch has none. `name` of an aten operation, with its overload after a dot.
  template <class F>
  void add(const std::string& name, F* function) {
    const size_t dot = name.find('.');
    const auto op = c10::Dispatcher::singleton().findSchema(
        {"aten::" + name.substr(0, dot), dot == name.npos ? "" : name.substr(dot + 1)});
    if (op && !op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
      library_.impl(name.c_str(), function);
    }
  }
  // In place of LibTorch's own.
  template <class F>
  void replace(const char* name, F* function) {
    library_.impl(name, function);
  }

 private:
  torch::Library library_;
};

// A buffer that a real operation would take and free again.
at::Tensor scratch_on(const at::Tensor& like, int64_t bytes);

// Whether the planned CPU multiplies the numbers of this meta tensor in tiles of f32.
bool converts_bf16(const at::Tensor& t);

// Each the operations of one file.
void add_products(MetaLibrary& library);
void add_attention(MetaLibrary& library);
void add_norms(MetaLibrary& library);
void add_convolution(MetaLibrary& library);
void add_indexing(MetaLibrary& library);
void add_copies(MetaLibrary& library);
void add_sums(MetaLibrary& library);
void add_resize(MetaLibrary& library);

}  // namespace compact
