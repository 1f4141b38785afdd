// SPDX-License-Identifier: Apache-2.0
// `quantize`: floats as codes of few bits, in groups with an offset and a step (GACT).
#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/codecs/blocks.h"
#include "compact/codecs/code_rows.h"
#include "compact/codecs/codec_types_impl.h"
#include "compact/codecs/launch.h"

namespace compact {
namespace {

using kernels::Levels;
using kernels::QuantizeFormat;
using kernels::Rounding;

class Quantizer final : public Codec {
 public:
  Quantizer(QuantizeFormat format, Along along) : format_(format), along_(along) {}

  bool takes(const at::Tensor& x) const override {
    const at::ScalarType t = x.scalar_type();
    return t == at::kFloat || t == at::kBFloat16 || t == at::kHalf;
  }

  Encoded encode(const at::Tensor& x, uint64_t key) const override {
    COMPACT_CHECK(takes(x), "codec quantize takes float32, bfloat16 and float16, not ",
                  c10::toString(x.scalar_type()));
    const at::Tensor dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
    const Shape shape(dense);
    const CodeRows rows = rows_of(dense, along_);
    const at::Tensor maps = in_memory(dense, rows);
    const at::Tensor codes = at::empty({rows.count() * format_.row_bytes(rows.length())},
                                       x.options().dtype(at::kByte)),
                     scales = at::empty({rows.count() * format_.groups(rows.length()) * 2},
                                        x.options().dtype(scale_type()));
    for_parts(rows, maps, codes, scales, [&](const Part& part) {
      at::Tensor values = turned(part.maps, rows).contiguous();
      // Half precision is converted to f32, since kernels do not take it.
      if (values.scalar_type() == at::kHalf) values = values.to(at::kFloat);
      backend_of(values).quantize({.format = format_,
                                   .x = values.data_ptr(),
                                   .codes = static_cast<uint8_t*>(part.codes.data_ptr()),
                                   .scales = part.scales.data_ptr(),
                                   .rows = part.rows,
                                   .n = part.length,
                                   .key = part.number ? derive(key, part.number) : key,
                                   .type = type_of(values)},
                                  launch_for(values));
    });
    Encoded e;
    e.parts = {codes, scales};
    e.decode = [own = *this, shape, rows](const Encoded::Parts& parts) {
      at::Tensor x = shape.empty();
      own.for_parts(rows, in_memory(x, rows), parts[0], parts[1],
                    [&](const Part& part) { own.decode(part, rows); });
      return x;
    };
    return e;
  }

  std::optional<int64_t> bytes(int64_t rows, int64_t n, at::ScalarType) const override {
    if (along_ == Along::kMemory) n *= rows, rows = 1;
    const auto scale = static_cast<int64_t>(c10::elementSize(scale_type()));
    return rows * (format_.row_bytes(n) + format_.groups(n) * 2 * scale);
  }

 private:
  // Some of the first indices of memory seen as [(samples, )outer, rows(, inner)], and their codes.
  struct Part {
    uint64_t number;
    int64_t rows, length;
    at::Tensor maps, codes, scales;
  };

  static at::Tensor in_memory(const at::Tensor& dense, const CodeRows& r) {
    const at::Tensor flat = flat_of(dense);
    // Matrices are transposed in tiles.
    if (r.samples > 1) return flat.view({r.samples, r.outer, r.rows});
    return r.inner == 1 ? flat.view({r.outer, r.rows}) : flat.view({r.outer, r.rows, r.inner});
  }
  // Rows before outer indices, or back.
  static at::Tensor turned(const at::Tensor& maps, const CodeRows& r) {
    const int64_t outer = r.samples == 1 ? 0 : 1;
    return maps.transpose(outer, outer + 1);
  }

  // Calls body(part) for parts of whole groups or samples, so that copies of them stay small.
  template <class Body>
  void for_parts(const CodeRows& r, const at::Tensor& maps, const at::Tensor& codes,
                 const at::Tensor& scales, Body body) const {
    const bool samples = r.samples > 1;
    const int64_t whole = samples ? 1 : format_.group / std::gcd(format_.group, r.inner),
                  size = r.rows * r.inner * (samples ? r.outer : whole),
                  step = whole * block_rows(size, block_elements(maps));
    uint64_t number = 0;
    for_alike_blocks(maps, 0, maps.size(0), step, [&](int64_t from, int64_t count) {
      // A part of all rows, or whole rows of some samples.
      const auto rows = [&](int64_t n) { return samples ? n * r.rows : r.rows; };
      const auto length = [&](int64_t n) { return samples ? r.length() : n * r.inner; };
      const auto bytes = [&](int64_t n) { return rows(n) * format_.row_bytes(length(n)); };
      const auto scaled = [&](int64_t n) { return rows(n) * format_.groups(length(n)) * 2; };
      body(Part{number++, rows(count), length(count), maps.narrow(0, from, count),
                codes.narrow(0, bytes(from), bytes(count)),
                scales.narrow(0, scaled(from), scaled(count))});
    });
  }

  void decode(const Part& part, const CodeRows& rows) const {
    const at::Tensor to = turned(part.maps, rows);
    const bool half = to.scalar_type() == at::kHalf, there = !half && to.is_contiguous();
    at::Tensor values =
        there ? to : at::empty(to.sizes(), half ? to.options().dtype(at::kFloat) : to.options());
    backend_of(values).dequantize({.format = format_,
                                   .codes = static_cast<const uint8_t*>(part.codes.data_ptr()),
                                   .scales = part.scales.data_ptr(),
                                   .x = values.data_ptr(),
                                   .rows = part.rows,
                                   .n = part.length,
                                   .type = type_of(values)},
                                  launch_for(values));
    // The highest level may lie a little above the largest value.
    if (half) values.clamp_(-65504, 65504);
    if (!there) at::Tensor(part.maps).copy_(turned(values, rows));
  }

  at::ScalarType scale_type() const {
    return format_.scale == kernels::Type::kFloat32 ? at::kFloat : at::kBFloat16;
  }

  QuantizeFormat format_;
  Along along_;
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
  const std::string along = spec.text("along", "memory");
  COMPACT_CHECK(along == "memory" || along == "last" || along == "channels",
                "quantize:along must be memory, last or channels, is `", along, "`");
  return std::make_shared<Quantizer>(f, along == "last"       ? Along::kLast
                                        : along == "channels" ? Along::kChannels
                                                              : Along::kMemory);
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

// Unless the policy says itself what groups run along.
Spec by_channels(const Spec& spec) {
  Spec other = spec;
  if (!spec.has("along")) other.set("along", "channels");
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
    .by_channels = by_channels,
    .by_rows = by_rows,
    .bits = bits_of,
    .with_bits = with_bits,
    .choices = choices};

}  // namespace compact
