// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "compact/base/check.h"
#include "compact/kernels/self_check_cases_impl.h"

namespace compact::kernels {
namespace {

// 1: some NaN and infinities; 2: far apart in size; 3: tiny; 4: all the same; 5: huge.
constexpr int kVariants = 6;
std::vector<float> hard_values(int64_t count, int variant, bool is_signed = true) {
  auto x = Checker::values(count, 1, variant == 1);
  for (size_t i = 0; i < x.size(); ++i) {
    if (variant == 2) x[i] = std::ldexp(x[i], static_cast<int>(i % 250) - 125);
    if (variant == 3) x[i] *= 1e-38f;
    if (variant == 4) x[i] = -0.75f;
    if (variant == 5) x[i] *= 1e38f;
    if (!is_signed) x[i] = std::abs(x[i]);
  }
  return x;
}

std::vector<uint8_t> all_codes(int64_t count) {
  std::vector<uint8_t> codes(static_cast<size_t>(count));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37);
  return codes;
}

using Shape = std::pair<int64_t, int64_t>;
std::vector<Shape> shapes(const Checker& c) {
  return c.either<Shape>({{0, 5}, {1, 1}, {3, 7}, {2, 256}, {5, 1030}, {3, 2336}}, {{48, 2048}});
}
std::vector<int64_t> counts(const Checker& c) {
  return c.either({0, 1, 8, 17, 1030, 40003}, {48 * 2048});
}

void check_float8(Checker& c) {
  for (const bool unpack : {false, true}) {
    c.begin(unpack ? "float8_unpack" : "float8_pack");
    for (const bool is_signed : c.either<bool>({false, true}, {true})) {
      for (const auto& [rows, n] : shapes(c)) {
        // The last two with guards.
        for (const int variant : c.either<int>({0, 1, 2, 3, 4, 5, 6, 7}, {0})) {
          const auto x = hard_values(rows * n, variant % kVariants, is_signed);
          const int64_t blocks = rows * ((n + kFloat8Block - 1) / kFloat8Block);
          const auto codes = all_codes(rows * n);
          const auto scales = c.values(blocks, 2, variant == 1);
          const auto what = cat(is_signed, " ", rows, " x ", n, " variant ", variant);
          c.compare(0, what, [&](const Backend& b, Side& s, const Launch& launch) {
            if (unpack) {
              b.float8_unpack({.codes = s.data("codes", codes),
                               .scales = s.floats("scales", scales),
                               .x = s.blank_floats("x", rows * n),
                               .rows = rows,
                               .n = n,
                               .is_signed = is_signed},
                              launch);
            } else {
              b.float8_pack({.x = s.floats("x", x),
                             .codes = s.blank_bytes("codes", rows * n),
                             .scales = s.blank_floats("scales", blocks),
                             .rows = rows,
                             .n = n,
                             .is_signed = is_signed,
                             .key = 11,
                             .guard = guard_of(s, variant - kVariants)},
                            launch);
            }
          });
        }
      }
    }
  }
}

void check_quantize(Checker& c, bool back, const QuantizeFormat& f, Type type) {
  for (const auto& [rows, n] : shapes(c)) {
    for (const int variant : c.either<int>({0, 1, 2, 3, 4, 5}, {0})) {
      if (back && variant > 1) continue;
      const auto x = hard_values(rows * n, variant);
      const auto codes = all_codes(rows * f.row_bytes(n));
      const auto scales = Checker::values(2 * rows * f.groups(n), 2, variant == 1);
      const auto what = cat(text_of(type), " bits ", f.bits, " group ", f.group, " rounding ",
                            static_cast<int>(f.rounding), " levels ", static_cast<int>(f.levels),
                            " ", rows, " x ", n, " variant ", variant);
      c.compare(0, what, [&](const Backend& b, Side& s, const Launch& launch) {
        if (back) {
          b.dequantize({.format = f,
                        .codes = s.data("codes", codes),
                        .scales = s.tensor("scales", scales, f.scale),
                        .x = s.blank("x", rows * n, type),
                        .rows = rows,
                        .n = n,
                        .type = type},
                       launch);
        } else {
          b.quantize({.format = f,
                      .x = s.tensor("x", x, type),
                      .codes = s.blank_bytes("codes", rows * f.row_bytes(n)),
                      .scales = s.blank("scales", 2 * rows * f.groups(n), f.scale),
                      .rows = rows,
                      .n = n,
                      .key = 13,
                      .type = type},
                     launch);
        }
      });
    }
  }
}

void check_quantizers(Checker& c) {
  for (const bool back : {false, true}) {
    c.begin(back ? "dequantize" : "quantize");
    for (const int bits : {1, 2, 4, 8}) {
      for (const Levels levels : c.either<Levels>(
               {Levels::kUniform, Levels::kLloyd, Levels::kPositive}, {Levels::kUniform})) {
        if ((levels == Levels::kLloyd && bits == 8) || (levels == Levels::kPositive && bits == 1)) {
          continue;
        }
        for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
          for (const int64_t group : c.either({32, 64, 128, 256, 512, 2048}, {64, 256, 2048})) {
            for (const Type type : kTypes) {
              const Type scale = kTypes[(group == 256) ^ (type == Type::kBFloat16)];
              check_quantize(c, back, {bits, group, rounding, levels, scale}, type);
            }
          }
        }
      }
    }
  }
}

void check_nf4(Checker& c) {
  c.begin("nf4_decode");
  for (const Type type : kTypes) {
    for (const bool nested : {false, true}) {
      for (const auto& [rows, n] : shapes(c)) {
        for (const int64_t gap : c.either({0, 3, 8}, {0})) {  // after each row
          for (const int variant : c.either<int>({0, 1, 2}, {0})) {
            const int64_t blocks = (rows * n + kNf4Block - 1) / kNf4Block,
                          own = nested ? (blocks + kNf4Nested - 1) / kNf4Nested : blocks;
            const auto codes = all_codes((rows * n + 1) / 2), scale_codes = all_codes(blocks);
            const auto scales = hard_values(own, variant), map = Checker::values(256, 3);
            const auto levels = Checker::values(16, 4), offset = Checker::values(1, 5);
            const auto what = cat(text_of(type), nested ? " nested " : " ", rows, " x ", n, " + ",
                                  gap, " variant ", variant);
            c.compare(0, what, [&](const Backend& b, Side& s, const Launch& launch) {
              // The elements between rows stay as they are.
              const std::vector<float> before(static_cast<size_t>(rows * (n + gap)), 2.5f);
              b.nf4_decode({.codes = s.data("codes", codes),
                            .scales = s.floats("scales", scales),
                            .scale_codes = nested ? s.data("scale_codes", scale_codes) : nullptr,
                            .offset = s.floats("offset", offset),
                            .levels = s.floats("levels", levels),
                            .map = s.floats("map", map),
                            .x = s.tensor("x", before, type),
                            .rows = rows,
                            .n = n,
                            .x_stride = n + gap,
                            .type = type},
                           launch);
            });
          }
        }
      }
    }
  }
}

void check_bits(Checker& c) {
  c.begin("bit_pack");
  for (const Type type : kTypes) {
    const uint32_t infinity = type == Type::kFloat32 ? 0x7f800000u : 0x7f80u;
    for (const int64_t count : counts(c)) {
      for (const int variant : c.either<int>({0, 1, 4}, {0})) {
        const auto x = hard_values(count, variant);
        c.compare(0, cat(text_of(type), " count ", count, " variant ", variant),
                  [&](const Backend& b, Side& s, const Launch& launch) {
                    // In variant 0 any value outside the range but 0 is a stray.
                    const std::vector<int32_t> none = {0};
                    auto* strays = const_cast<int32_t*>(s.data("strays", none));
                    b.bit_pack({.x = s.tensor("x", x, type),
                                .bits = s.blank_bytes("bits", (count + 7) / 8),
                                .strays = variant == 1 ? nullptr : strays,
                                .count = count,
                                .element = type == Type::kFloat32 ? 4 : 2,
                                .low = 1,
                                .span = variant == 4 ? 0xffffffffu : infinity},
                               launch);
                  });
      }
    }
  }
  for (const int64_t count : counts(c)) {
    const auto x = all_codes(count);
    c.compare(0, cat("bytes, count ", count), [&](const Backend& b, Side& s, const Launch& launch) {
      b.bit_pack({.x = s.data("x", x),
                  .bits = s.blank_bytes("bits", (count + 7) / 8),
                  .count = count,
                  .element = 1,
                  .low = 37,
                  .span = 100},
                 launch);
    });
  }
  c.begin("bit_unpack");
  for (const int64_t count : counts(c)) {
    const auto bits = all_codes((count + 7) / 8);
    c.compare(0, cat("bytes, count ", count), [&](const Backend& b, Side& s, const Launch& launch) {
      b.bit_unpack({.bits = s.data("bits", bits),
                    .x = s.blank_bytes("x", count),
                    .count = count,
                    .element = 1,
                    .zero = 3,
                    .one = 200},
                   launch);
    });
  }
  for (const Type type : kTypes) {
    for (const int64_t count : counts(c)) {
      const auto bits = all_codes((count + 7) / 8);
      c.compare(0, cat(text_of(type), " count ", count),
                [&](const Backend& b, Side& s, const Launch& launch) {
                  b.bit_unpack({.bits = s.data("bits", bits),
                                .x = s.blank("x", count, type),
                                .count = count,
                                .element = type == Type::kFloat32 ? 4 : 2,
                                .zero = 0xbf80,
                                .one = type == Type::kFloat32 ? 0x3f9d70a4u : 0x3f9du},
                               launch);
                });
    }
  }
}

}  // namespace

void check_codecs(Checker& c) {
  check_float8(c);
  check_quantizers(c);
  check_nf4(c);
  check_bits(c);
}

}  // namespace compact::kernels
