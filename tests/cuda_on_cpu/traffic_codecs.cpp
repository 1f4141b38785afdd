// SPDX-License-Identifier: Apache-2.0
#include "traffic.h"

namespace compact::kernels {

bool traffic_of_codecs(Type type) {
  bool good = true;
  constexpr int64_t kCount = kRows * kWidth;
  const std::string on = cat(text_of(type), ", ", kRows, " x ", kWidth);
  for (const int bits : {1, 2, 4, 8}) {
    for (const int64_t group : {64, 256, 2048}) {
      for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
        const QuantizeFormat f = {bits, group, rounding, Levels::kUniform, type};
        const std::string what =
            cat(on, ", ", bits, " bits, groups of ", group,
                rounding == Rounding::kNearest ? ", to nearest" : ", stochastic");
        good &= report(what, [&](Tensors& t) {
          cuda().quantize({.format = f,
                           .x = t.of(type, kCount),
                           .codes = t.bytes(kRows * f.row_bytes(kWidth)),
                           .scales = t.of(type, 2 * kRows * f.groups(kWidth)),
                           .rows = kRows,
                           .n = kWidth,
                           .key = 3,
                           .type = type},
                          {});
        });
        if (rounding == Rounding::kStochastic) continue;  // is not read back otherwise
        good &= report(what, [&](Tensors& t) {
          cuda().dequantize({.format = f,
                             .codes = t.bytes(kRows * f.row_bytes(kWidth)),
                             .scales = t.of(type, 2 * kRows * f.groups(kWidth)),
                             .x = t.of(type, kCount),
                             .rows = kRows,
                             .n = kWidth,
                             .type = type},
                            {});
        });
      }
    }
  }
  const int element = type == Type::kFloat32 ? 4 : 2;
  good &= report(cat(element, " B, ", kCount), [&](Tensors& t) {
    cuda().bit_pack({.x = t.of(type, kCount),
                     .bits = t.bytes(kCount / 8),
                     .count = kCount,
                     .element = element,
                     .low = 1,
                     .span = 0x7f80},
                    {});
  });
  good &= report(cat(element, " B, ", kCount), [&](Tensors& t) {
    cuda().bit_unpack({.bits = t.bytes(kCount / 8),
                       .x = t.of(type, kCount),
                       .count = kCount,
                       .element = element,
                       .zero = 0,
                       .one = 1},
                      {});
  });
  if (type == Type::kBFloat16) {
    good &= report(cat("1 B, ", kCount), [&](Tensors& t) {
      cuda().bit_pack({.x = t.bytes(kCount),
                       .bits = t.bytes(kCount / 8),
                       .count = kCount,
                       .element = 1,
                       .low = 1,
                       .span = 1},
                      {});
    });
    good &= report(cat("1 B, ", kCount), [&](Tensors& t) {
      cuda().bit_unpack({.bits = t.bytes(kCount / 8),
                         .x = t.bytes(kCount),
                         .count = kCount,
                         .element = 1,
                         .zero = 0,
                         .one = 1},
                        {});
    });
    return good;
  }
  constexpr int64_t kBlocks = kCount / kFloat8Block;
  good &= report(on, [&](Tensors& t) {
    cuda().float8_pack({.x = t.floats(kCount),
                        .codes = t.bytes(kCount),
                        .scales = t.floats(kBlocks),
                        .rows = kRows,
                        .n = kWidth,
                        .is_signed = true,
                        .key = 1},
                       {});
  });
  good &= report(on, [&](Tensors& t) {
    cuda().float8_unpack({.codes = t.bytes(kCount),
                          .scales = t.floats(kBlocks),
                          .x = t.floats(kCount),
                          .rows = kRows,
                          .n = kWidth,
                          .is_signed = true},
                         {});
  });
  return good;
}

}  // namespace compact::kernels
