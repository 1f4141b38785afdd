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

// The name of LibTorch's record scope (RECORD_USER_SCOPE) in which tensors are encoded and
// restored: plans and profilers know by it what codecs take.
inline constexpr const char* kCodecScope = "codec";

// What is held in place of a tensor.
struct Encoded {
  using Parts = std::vector<at::Tensor>;
  Parts parts;
  // The tensor, or what is left of it, from parts like these: its shape, strides (of a dense
  // tensor) and type.
  std::function<at::Tensor(const Parts&)> decode;
  // Gives the means where the tensor is held as means over windows; else null.
  std::function<at::Tensor(const Parts&)> decode_means;
  Windows windows;
  // Where parts are copied to the host beside what the device computes: makes the device wait until
  // they are there and frees the memory that they are copied from, which else lives until they are
  // restored. May be called at any time, also when nothing is left to be done; null: nothing is.
  std::function<void()> settle;
  // Where such parts can be copied back beside what the device computes: begins that, on the
  // current stream's behalf. What it gives is restored, once, in place of this; or dropped.
  std::function<Encoded(const Parts&)> fetch;

  bool defined() const { return decode != nullptr; }
  at::Tensor restore() const;
  at::Tensor means() const;  // where there is decode_means
  Encoded fetched() const;   // where there is fetch
  int64_t bytes() const;
};

// Stateless: may be shared between threads.
class Codec {
 public:
  virtual ~Codec() = default;
  // Whether encode() takes this tensor: its type, device and, for some codecs, its values.
  virtual bool takes(const at::Tensor& x) const = 0;
  // `key` of its random bits, where it has any. Throws InputError where it does not take x. Whoever
  // calls it calls `settle` later on, where there is one. x may be a meta tensor, of which no value
  // is read.
  virtual Encoded encode(const at::Tensor& x, uint64_t key) const = 0;
  // Exactly what the parts of a contiguous [rows, n] take; nullopt where that depends on values.
  virtual std::optional<int64_t> bytes(int64_t rows, int64_t n, at::ScalarType type) const = 0;
};
using CodecPtr = std::shared_ptr<const Codec>;

// What can be read from what codecs leave: the tensor, one near it, or where it is above 0.
enum class Content : uint8_t { kExact, kRounded, kSigns };

// The bits of a codec that can have more or fewer: a budget may change them, and where `average` is
// set they are chosen while training.
struct CodecBits {
  int bits = 0;                   // as set
  std::vector<int> choices;       // ascending: those that go with its other settings
  std::optional<double> average;  // over all tensors that say so
  bool zero_code = false;         // 0 has a code of its own
};

// A way to hold a tensor that a budget may choose: the codec with its settings, and the mean
// squared error of what comes back as a part of the mean square, for normal values.
struct CodecChoice {
  std::string spec;
  double error = 0;
};

// One row of the table. Its functions take specs that `make` takes.
struct CodecInfo {
  std::string name, settings, summary;
  // Throws InputError on an unknown setting or a value out of range.
  CodecPtr (*make)(const Spec& spec);
  Content (*content)(const Spec& spec);
  // The spec with the settings that give 0 a code of its own, so that signs can be read too;
  // nullopt: there are none. Null: there never are.
  std::optional<Spec> (*with_signs)(const Spec& spec) = nullptr;
  // Null: there is no choice of bits. with_bits: the spec with so many bits, one of the choices,
  // and with another average where one is given.
  CodecBits (*bits)(const Spec& spec) = nullptr;
  Spec (*with_bits)(const Spec& spec, int bits, std::optional<double> average) = nullptr;
  // Null: a budget chooses it by no setting. Each takes every float type and shape.
  std::vector<CodecChoice> (*choices)() = nullptr;
};

// The table.
std::span<const CodecInfo* const> codecs();
const CodecInfo* find_codec(const std::string& name);  // null: there is none
// All that budgets may choose, the least error first.
std::span<const CodecChoice> codec_choices();
// One codec, or several by `+`: each takes the parts that the one before left, where it takes
// them (`quantize:bits=4+offload`); `offload` must be the last. Throws InputError on an unknown
// name, with a suggestion.
CodecPtr make_codec(const std::vector<Spec>& chain);
inline CodecPtr make_codec(const std::string& chain) {
  return make_codec(Spec::parse_chain(chain));
}
// What can be read from what a chain of codecs leaves.
Content content_of(const std::vector<Spec>& chain);

}  // namespace compact
