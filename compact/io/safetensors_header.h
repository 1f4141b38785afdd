// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file (https://github.com/huggingface/safetensors): 8 bytes with the
// length of a JSON object {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ...,
// "__metadata__": {"key": "text"}}, then the tensors' bytes without gaps. Little-endian.
// Headers are hostile input: every rule is checked, memory stays in proportion to the text.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace compact {

struct TensorEntry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the end of the header
  int64_t end = 0;
};

using Metadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<TensorEntry> entries;  // in the order of their bytes
  Metadata metadata;
};

inline constexpr int64_t kLargestHeader = 100'000'000;  // bytes, as in the reference implementation
inline constexpr size_t kMostDimensions = 64;

// "F32", "BF16", ...; InputError beginning with `where` for a type that files here cannot hold.
std::string_view safetensors_dtype(at::ScalarType type, std::string_view where);

// Bytes of a tensor; InputError beginning with `where` on a negative size or where the product
// (zeros taken as ones, so that strides fit too) passes 2^63.
int64_t tensor_bytes(at::ScalarType type, const std::vector<int64_t>& shape,
                     std::string_view where);

// Parses the JSON text of a header in front of `data_bytes` bytes. InputError beginning with
// `where`: invalid JSON, anything but the fields above, a name or field given twice, an unknown
// dtype, a shape that overflows, offsets that are not the tensor's size, overlap, leave a gap, or
// do not cover the data exactly.
SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes,
                                           std::string_view where);

// Gives the entries offsets and returns the length and JSON text to stand before the data, padded
// with spaces to a multiple of 8. Bytes are laid out by falling element size (else in the order
// given), so that every tensor is aligned to its element. InputError on repeated or reserved
// names and on names that are not UTF-8.
std::string build_safetensors_header(std::vector<TensorEntry>& entries, const Metadata& metadata,
                                     std::string_view where);

}  // namespace compact
