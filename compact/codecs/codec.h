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
// restored: plans and profilers find the cost of codecs by it.
inline constexpr const char* kCodecScope = "codec";

// The parts that are held in place of a tensor.
struct Encoded {
  using Parts = std::vector<at::Tensor>;
  Parts parts;
  // The tensor, exact or not, from parts like these, with its shape, strides (of a dense tensor)
  // and type.
  std::function<at::Tensor(const Parts&)> decode;
  // Gives the means where the tensor is held as means over windows; else null.
  std::function<at::Tensor(const Parts&)> decode_means;
  Windows windows;
  // For parts that are copied to the host while the device goes on: makes the device wait for the
  // copies and frees their source, which else lives until the parts are restored. Keeps no tensor
  // alive. May be called at any time and again; null: nothing to settle.
  std::function<void()> settle;
  // For such parts: begins to copy them back while the device goes on, for the current stream. The
  // result is restored, once, in place of this; or dropped.
  std::function<Encoded(const Parts&)> fetch;

  bool defined() const { return decode != nullptr; }
  at::Tensor restore() const;
  at::Tensor means() const;  // if there is decode_means
  Encoded fetched() const;   // if there is fetch
  int64_t bytes() const;
};

// Stateless: may be shared between threads.
class Codec {
 public:
  virtual ~Codec() = default;
  // Whether encode() takes this tensor: its type, device and, for some codecs, its values.
  virtual bool takes(const at::Tensor& x) const = 0;
  // `key`: of its random bits, if it draws any. The caller must call `settle` later on, if there is
  // one. x may be a meta tensor, of which no value is read. Throws InputError where it does not
  // take x.
  virtual Encoded encode(const at::Tensor& x, uint64_t key) const = 0;
  // The exact bytes of the parts of a contiguous [rows, n], or of so many channels of n values each
  // where groups run along channels; nullopt where they depend on values.
  virtual std::optional<int64_t> bytes(int64_t rows, int64_t n, at::ScalarType type) const = 0;
};
using CodecPtr = std::shared_ptr<const Codec>;

// The part of a tensor that a codec preserves: all bits, rounded values, or which are above 0.
enum class Content : uint8_t { kExact, kRounded, kSigns };

// The bits of a codec that can have more or fewer: a budget may change them, and where `average` is
// set they are chosen while training.
struct CodecBits {
  int bits = 0;                   // as set
  std::vector<int> choices;       // ascending: those that its other settings allow
  std::optional<double> average;  // over all tensors with one
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
  // The spec of codes that never put values of two channels (of the second dimension) into one
  // group, for what batch norms read. Null: values do not share anything in them.
  Spec (*by_channels)(const Spec& spec) = nullptr;
  // The spec of which no scale is shared by two rows (of the last dimension). Null: all are so.
  Spec (*by_rows)(const Spec& spec) = nullptr;
  // Null: there is no choice of bits. with_bits: the spec with so many bits, one of the choices,
  // and with another average where one is given.
  CodecBits (*bits)(const Spec& spec) = nullptr;
  Spec (*with_bits)(const Spec& spec, int bits, std::optional<double> average) = nullptr;
  // Its settings that budgets may choose, each for every float type and shape. Null: none.
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
// The part of a tensor that a chain of codecs preserves.
Content content_of(const std::vector<Spec>& chain);

}  // namespace compact
