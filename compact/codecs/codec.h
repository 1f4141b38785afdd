// SPDX-License-Identifier: Apache-2.0
// Codecs: ways to hold a tensor between forward and backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compact/base/spec.h"

namespace compact {

// Square windows over maps: their sides and the steps between them, in elements.
struct Windows {
  int64_t size = 0, stride = 0;
};

// What is held in place of a tensor.
struct Encoded {
  using Parts = std::vector<at::Tensor>;
  Parts parts;
  // The tensor, or what is left of it, from parts like these: its shape, strides (of a dense
  // tensor) and type.
  std::function<at::Tensor(const Parts&)> decode;
  // Of a tensor held as means over windows: the means; else null.
  std::function<at::Tensor(const Parts&)> decode_means;
  Windows windows;

  bool defined() const { return decode != nullptr; }
  at::Tensor restore() const { return decode(parts); }
  int64_t bytes() const;
};

// Stateless: may be shared between threads.
class Codec {
 public:
  virtual ~Codec() = default;
  // Whether encode() takes this tensor: its type, device and, for some codecs, its values.
  virtual bool takes(const at::Tensor& x) const = 0;
  // `key` of its random bits, where it has any. Throws InputError where it does not take x.
  virtual Encoded encode(const at::Tensor& x, uint64_t key) const = 0;
  // Exactly what the parts of a contiguous [rows, n] take; nullopt where that depends on values.
  virtual std::optional<int64_t> bytes(int64_t rows, int64_t n, at::ScalarType type) const = 0;
};
using CodecPtr = std::shared_ptr<const Codec>;

struct CodecInfo {
  std::string name, settings, summary;
  bool lossless;
  // Throws InputError on an unknown setting or a value out of range.
  CodecPtr (*make)(const Spec& spec);
};

// quantize, mask, index, pool, offload.
std::span<const CodecInfo* const> codecs();
const CodecInfo* find_codec(const std::string& name);  // null: there is none
// One codec, or several by `+`: each takes the parts that the one before left, where it takes
// them (`quantize:bits=4+offload`); `offload` must be the last. Throws InputError on an unknown
// name, with a suggestion.
CodecPtr make_codec(const std::string& chain);
// What can be read from what a chain of codecs, or `keep`, leaves.
enum class Content : uint8_t { kExact, kRounded, kSigns };
Content content_of(const std::string& chain);
// The chain where signs can be read from it, else one like it that gives 0 a code of its own; none
// where there is none (1 bit, means).
std::optional<std::string> with_signs(const std::string& chain);

}  // namespace compact
