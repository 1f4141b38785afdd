// SPDX-License-Identifier: Apache-2.0
// `quantize`: floats as codes of few bits, in groups with an offset and a step (GACT).
#include <ATen/ATen.h>

#include <bit>

#include "compact/base/check.h"
#include "compact/codecs/blocks.h"
#include "compact/codecs/codec_types_impl.h"
#include "compact/codecs/launch.h"

namespace compact {
namespace {

using kernels::Levels;
using kernels::QuantizeFormat;
using kernels::Rounding;

class Quantizer final : public Codec {
 public:
  Quantizer(QuantizeFormat format, bool along_last) : format_(format), along_last_(along_last) {}

  bool takes(const at::Tensor& x) const override {
    const at::ScalarType t = x.scalar_type();
    return t == at::kFloat || t == at::kBFloat16 || t == at::kHalf;
  }

  Encoded encode(const at::Tensor& x, uint64_t key) const override {
    COMPACT_CHECK(takes(x), "codec quantize takes float32, bfloat16 and float16, not ",
                  c10::toString(x.scalar_type()));
    const bool last = along_last_ && x.dim() > 0 && x.numel() > 0;
    at::Tensor flat = last ? x.contiguous() : flat_of(x);
    const Shape shape(last ? flat : x);
    const int64_t n = last ? x.size(-1) : x.numel(), rows = n ? x.numel() / n : 0;
    const auto bytes = x.options().dtype(at::kByte);
    const at::Tensor codes = at::empty({rows * format_.row_bytes(n)}, bytes);
    const at::Tensor scales =
        at::empty({rows * format_.groups(n) * 2}, x.options().dtype(scale_type()));
    // Half precision is converted to f32, since kernels do not take it.
    if (flat.scalar_type() == at::kHalf) flat = flat.to(at::kFloat);
    backend_of(flat).quantize({.format = format_,
                               .x = flat.data_ptr(),
                               .codes = static_cast<uint8_t*>(codes.data_ptr()),
                               .scales = scales.data_ptr(),
                               .rows = rows,
                               .n = n,
                               .key = key,
                               .type = type_of(flat)},
                              launch_for(flat));
    Encoded e;
    e.parts = {codes, scales};
    e.decode = [format = format_, shape, rows, n](const Encoded::Parts& parts) {
      at::Tensor x = shape.empty();
      const bool half = x.scalar_type() == at::kHalf;
      const at::Tensor to =
          half ? at::empty_strided(shape.sizes, shape.strides, shape.options.dtype(at::kFloat)) : x;
      backend_of(to).dequantize({.format = format,
                                 .codes = static_cast<const uint8_t*>(parts[0].data_ptr()),
                                 .scales = parts[1].data_ptr(),
                                 .x = to.data_ptr(),
                                 .rows = rows,
                                 .n = n,
                                 .type = type_of(to)},
                                launch_for(to));
      // The highest level may lie a little above the largest value.
      return half ? x.copy_(to.clamp_(-65504, 65504)) : x;
    };
    return e;
  }

  std::optional<int64_t> bytes(int64_t rows, int64_t n, at::ScalarType) const override {
    if (!along_last_) n *= rows, rows = 1;
    const auto scale = static_cast<int64_t>(c10::elementSize(scale_type()));
    return rows * (format_.row_bytes(n) + format_.groups(n) * 2 * scale);
  }

 private:
  at::ScalarType scale_type() const {
    return format_.scale == kernels::Type::kFloat32 ? at::kFloat : at::kBFloat16;
  }

  QuantizeFormat format_;
  bool along_last_;
};

CodecPtr make_quantize(const Spec& spec) {
  spec.allow({"bits", "group", "rounding", "levels", "scale", "along", "adapt"});
  const auto choice = [&](const char* key, const char* first, const char* second, bool fallback) {
    const std::string text = spec.text(key, fallback ? second : first);
    COMPACT_CHECK(text == first || text == second, "quantize:", key, " must be ", first, " or ",
                  second, ", is `", text, "`");
    return text == second;
  };
  QuantizeFormat f{};
  const int64_t bits = spec.integer("bits", 4);
  COMPACT_CHECK(bits == 1 || bits == 2 || bits == 4 || bits == 8,
                "quantize:bits must be 1, 2, 4 or 8, is ", bits);
  f.bits = static_cast<int>(bits);
  f.group = spec.integer("group", 256);
  COMPACT_CHECK(f.group >= 32 && f.group <= 2048 && std::has_single_bit(uint64_t(f.group)),
                "quantize:group must be a power of two from 32 to 2048, is ", f.group);
  f.rounding = choice("rounding", "nearest", "stochastic", true) ? Rounding::kStochastic
                                                                 : Rounding::kNearest;
  const std::string levels = spec.text("levels", "uniform");
  COMPACT_CHECK(levels == "uniform" || levels == "lloyd" || levels == "positive",
                "quantize:levels must be uniform, lloyd or positive, is `", levels, "`");
  f.levels = levels == "lloyd"      ? Levels::kLloyd
             : levels == "positive" ? Levels::kPositive
                                    : Levels::kUniform;
  if (spec.has("adapt")) {
    const double adapt = spec.number("adapt", 4);
    COMPACT_CHECK(adapt >= 1 && adapt <= 8,
                  "quantize:adapt must be from 1 to 8 bits on average, is ", adapt);
    COMPACT_CHECK(f.levels != Levels::kLloyd,
                  "quantize:levels=lloyd cannot be combined with adapt");
  }
  COMPACT_CHECK(f.levels != Levels::kLloyd || f.bits <= 4,
                "quantize:levels=lloyd has at most 4 bits, not ", f.bits);
  COMPACT_CHECK(f.levels != Levels::kPositive || f.bits >= 2,
                "quantize:levels=positive has at least 2 bits, not ", f.bits);
  f.scale =
      choice("scale", "f32", "bf16", true) ? kernels::Type::kBFloat16 : kernels::Type::kFloat32;
  return std::make_shared<Quantizer>(f, choice("along", "memory", "last", false));
}

CodecBits bits_of(const Spec& spec) {
  CodecBits b{.bits = static_cast<int>(spec.integer("bits", 4)), .choices = {1, 2, 4, 8}};
  const std::string levels = spec.text("levels", "uniform");
  b.zero_code = levels == "positive";
  if (b.zero_code) b.choices.erase(b.choices.begin());
  if (levels == "lloyd") b.choices.pop_back();
  if (spec.has("adapt")) b.average = spec.number("adapt", 4);
  return b;
}

Spec with_bits(const Spec& spec, int bits, std::optional<double> average) {
  Spec other = spec;
  other.set("bits", cat(bits));
  if (average) other.set("adapt", cat(*average));
  return other;
}

// Besides 0 at least two levels are needed.
std::optional<Spec> with_zero_code(const Spec& spec) {
  if (spec.integer("bits", 4) == 1) return std::nullopt;
  Spec other = spec;
  other.set("levels", "positive");
  return other;
}

Spec by_rows(const Spec& spec) {
  Spec other = spec;
  other.set("along", "last");
  return other;
}

// .0238 in 4 bits and groups of 256, as measured and published (GACT, arXiv 2206.11357); others by
// the squares of their steps.
std::vector<CodecChoice> choices() {
  std::vector<CodecChoice> all;
  for (const int bits : {8, 4, 2}) {
    const double steps = 15.0 / ((1 << bits) - 1);
    all.push_back({cat("quantize:bits=", bits), .0238 * steps * steps});
  }
  return all;
}

}  // namespace

extern const CodecInfo quantize_codec = {
    .name = "quantize",
    .settings =
        "bits=4,group=256,rounding=stochastic,levels=uniform,scale=bf16,along=memory,adapt=N",
    .summary =
        "codes of 1, 2, 4 or 8 bits in groups with an offset and a step; adapt: bits are "
        "chosen while training, N on average (GACT)",
    .make = make_quantize,
    .content = [](const Spec&) { return Content::kRounded; },
    .with_signs = with_zero_code,
    .by_rows = by_rows,
    .bits = bits_of,
    .with_bits = with_bits,
    .choices = choices};

}  // namespace compact
