// SPDX-License-Identifier: Apache-2.0
// `mask`: one bit an element.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "compact/base/check.h"
#include "compact/codecs/codec_types_impl.h"
#include "compact/codecs/launch.h"

namespace compact {
namespace {

// The bits of element i as an unsigned number.
uint32_t word_of(const at::Tensor& flat, int64_t i) {
  uint32_t word = 0;
  const auto size = static_cast<size_t>(flat.element_size());
  std::memcpy(
      &word, static_cast<const char*>(flat.const_data_ptr()) + static_cast<size_t>(i) * size, size);
  return word;
}

// Tensors of FakeTensorMode and zeros of forward derivatives have none.
bool has_memory(const at::Tensor& x) {
  return x.has_storage() && !x._is_zerotensor() && !x.unsafeGetTensorImpl()->is_python_dispatch();
}

struct Two {
  uint32_t zero = 0, one = 1;
};

// Finds the two bit patterns of a tensor on the CPU in its first elements or, where these are all
// equal, by searching for a second one; both are the same where there is only one. False where the
// first elements have more than two.
bool two_of(const at::Tensor& flat, Two& two) {
  if (flat.numel() == 0) return true;
  two.zero = two.one = word_of(flat, 0);
  const int64_t probe = std::min<int64_t>(flat.numel(), 4096);
  for (int64_t i = 1; i < probe; ++i) {
    const uint32_t word = word_of(flat, i);
    if (two.one == two.zero) two.one = word;
    if (word != two.zero && word != two.one) return false;
  }
  for (int64_t i = probe; i < flat.numel() && two.one == two.zero; ++i) two.one = word_of(flat, i);
  return true;
}

at::Tensor pack(const at::Tensor& flat, uint32_t low, uint32_t span, uint32_t other,
                int32_t* strays) {
  at::Tensor bits = at::empty({(flat.numel() + 7) / 8}, flat.options().dtype(at::kByte));
  backend_of(flat).bit_pack({.x = flat.data_ptr(),
                             .bits = static_cast<uint8_t*>(bits.data_ptr()),
                             .strays = strays,
                             .count = flat.numel(),
                             .element = static_cast<int>(flat.element_size()),
                             .low = low,
                             .span = span,
                             .other = other},
                            launch_for(flat));
  return bits;
}

Encoded encoded(const at::Tensor& bits, const at::Tensor& x, Two two) {
  Encoded e;
  e.parts = {bits};
  e.decode = [shape = Shape(x), two](const Encoded::Parts& parts) {
    at::Tensor y = shape.empty();
    backend_of(y).bit_unpack({.bits = static_cast<const uint8_t*>(parts[0].data_ptr()),
                              .x = y.data_ptr(),
                              .count = y.numel(),
                              .element = static_cast<int>(y.element_size()),
                              .zero = two.zero,
                              .one = two.one},
                             launch_for(y));
    return y;
  };
  return e;
}

std::optional<int64_t> bits_bytes(int64_t rows, int64_t n) { return (rows * n + 7) / 8; }

// Bool tensors on any device; on the CPU also tensors of at most two values, such as the mask that
// dropout multiplies with. A tensor on the meta device has no values: who knows that it is such a
// mask encodes it.
class TwoValues final : public Codec {
 public:
  bool takes(const at::Tensor& x) const override {
    if (!has_memory(x)) return false;
    if (x.scalar_type() == at::kBool) return true;
    if (!x.is_cpu() || x.is_complex() || x.element_size() > 4) return false;
    const at::Tensor flat = flat_of(x);
    Two two;
    int32_t strays = 0;
    if (!has_memory(flat) || !two_of(flat, two)) return false;
    pack(flat, two.one, 1, two.zero, &strays);
    return strays == 0;
  }
  Encoded encode(const at::Tensor& x, uint64_t) const override {
    const at::Tensor flat = flat_of(x);
    Two two;
    int32_t strays = 0;
    const bool known = x.scalar_type() == at::kBool || x.is_meta();
    COMPACT_CHECK(known || (x.is_cpu() && x.element_size() <= 4 && two_of(flat, two)),
                  "codec mask takes tensors of two values");
    const at::Tensor bits = pack(flat, two.one, 1, two.zero, known ? nullptr : &strays);
    COMPACT_CHECK(strays == 0, "codec mask takes tensors of two values");
    return encoded(bits, x, two);
  }
  std::optional<int64_t> bytes(int64_t rows, int64_t n, at::ScalarType) const override {
    return bits_bytes(rows, n);
  }
};

// Where a float is above 0: all that the backward pass of a ReLU reads. Decodes to 1 and 0.
class Sign final : public Codec {
 public:
  bool takes(const at::Tensor& x) const override {
    const at::ScalarType t = x.scalar_type();
    return t == at::kFloat || t == at::kBFloat16 || t == at::kHalf;
  }
  Encoded encode(const at::Tensor& x, uint64_t) const override {
    COMPACT_CHECK(takes(x), "codec mask:of=sign takes float32, bfloat16 and float16, not ",
                  c10::toString(x.scalar_type()));
    const at::ScalarType t = x.scalar_type();
    // Bits from 1 to those of infinity: above 0, and no NaN.
    const uint32_t infinity = t == at::kFloat ? 0x7f800000u : t == at::kHalf ? 0x7c00u : 0x7f80u;
    const uint32_t one = t == at::kFloat ? 0x3f800000u : t == at::kHalf ? 0x3c00u : 0x3f80u;
    return encoded(pack(flat_of(x), 1, infinity, 0, nullptr), x, {0, one});
  }
  std::optional<int64_t> bytes(int64_t rows, int64_t n, at::ScalarType) const override {
    return bits_bytes(rows, n);
  }
};

CodecPtr make_mask(const Spec& spec) {
  spec.allow({"of"});
  const std::string of = spec.text("of", "values");
  COMPACT_CHECK(of == "values" || of == "sign", "mask:of must be values or sign, is `", of, "`");
  if (of == "sign") return std::make_shared<Sign>();
  return std::make_shared<TwoValues>();
}

}  // namespace

extern const CodecInfo mask_codec = {
    .name = "mask",
    .settings = "of=values",
    .summary =
        "one bit: of bool tensors and of floats with two values; of=sign: where floats are above 0",
    .make = make_mask,
    .content = [](const Spec& spec) {
      return spec.text("of", "values") == "sign" ? Content::kSigns : Content::kExact;
    }};

}  // namespace compact
