// SPDX-License-Identifier: Apache-2.0
// Names of tensors that autograd saves: layer1.0.conv1.convolution.input.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace compact {

class SavedTensorNames {
 public:
  using Named = std::span<const std::pair<std::string, at::Tensor>>;
  // Parameters and buffers, known by their storage, name the operations that read them or copies
  // of them in other types, but for those without a name.
  SavedTensorNames(Named parameters, Named buffers);

  // is_known: the storage is a parameter's or a buffer's. is_buffer: a buffer's.
  bool is_known(const void* storage) const { return find(storage); }
  bool is_buffer(const void* storage) const;
  // The parameter that lies there, by its name; nullopt: none. Buffers are left out, since kernels
  // write them unseen.
  std::optional<std::pair<std::string, at::Tensor>> parameter(const void* storage) const;
  struct Name {
    std::string text;
    // A bit for each tensor argument of the running operation that lies in its memory; 0: it is a
    // result.
    uint32_t inputs = 0;
  };
  // The name of a tensor that the running operation saves: NEAREST.OP.PLACE, or NEAREST~K.OP.PLACE
  // for the K-th operation after it that reads no parameter; with @N where that name was given
  // before.
  Name next(const at::Tensor& t);

 private:
  struct Known {
    std::string name;
    at::Tensor tensor;
    bool buffer;
  };
  const Known* find(const void* storage) const;

  std::map<const void*, Known> known_;
  std::string nearest_;  // the last parameter that an operation read
  int64_t since_ = 0;    // operations without any since
  uint64_t last_op_ = 0;
  std::map<std::string, int64_t> repeated_;
};

}  // namespace compact
