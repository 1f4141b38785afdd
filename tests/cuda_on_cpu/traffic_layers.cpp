// SPDX-License-Identifier: Apache-2.0
#include "traffic.h"

namespace compact::kernels {

bool traffic_of_layers(Type type) {
  bool good = true;
  const std::string on = cat(text_of(type), ", ", kRows, " x ", kWidth);
  for (const Type weight : kTypes) {
    const std::string what = cat(on, ", weight ", text_of(weight));
    good &= report(what, [&](Tensors& t) {
      cuda().rms_norm({.x = t.of(type, kRows * kWidth),
                       .weight = t.of(weight, kWidth),
                       .y = t.of(type, kRows * kWidth),
                       .rstd = t.floats(kRows),
                       .rows = kRows,
                       .n = kWidth,
                       .eps = 1e-6f,
                       .type = type,
                       .weight_type = weight},
                      {});
    });
    good &= report(what, [&](Tensors& t) {
      cuda().rms_norm_backward({.gy = t.of(type, kRows * kWidth),
                                .x = t.of(type, kRows * kWidth),
                                .weight = t.of(weight, kWidth),
                                .rstd = t.floats(kRows),
                                .residual = t.of(type, kRows * kWidth),
                                .gx = t.of(type, kRows * kWidth),
                                .gweight = t.of(weight, kWidth),
                                .parts = t.floats(kParts * kWidth),
                                .rows = kRows,
                                .n = kWidth,
                                .parts_count = kParts,
                                .type = type,
                                .weight_type = weight},
                               {});
    });
  }
  for (const int64_t dim : {64, 128}) {
    const int64_t heads = kWidth / dim;
    good &= report(cat(text_of(type), ", ", kRows, " tokens, ", heads, " heads of ", dim),
                   [&](Tensors& t) {
                     cuda().rope({.x = t.of(type, kRows * kWidth),
                                  .cos = t.floats(kRows * dim / 2),
                                  .sin = t.floats(kRows * dim / 2),
                                  .tokens = kRows,
                                  .length = kRows,
                                  .heads = heads,
                                  .dim = dim,
                                  .head_stride = dim,
                                  .row_stride = kWidth,
                                  .type = type},
                                 {});
                   });
  }
  good &= report(on, [&](Tensors& t) {
    cuda().swiglu({.gate_up = t.of(type, 2 * kRows * kWidth),
                   .silu = t.of(type, kRows * kWidth),
                   .product = t.of(type, kRows * kWidth),
                   .rows = kRows,
                   .m = kWidth,
                   .type = type},
                  {});
  });
  good &= report(on, [&](Tensors& t) {
    cuda().swiglu_backward({.gproduct = t.of(type, kRows * kWidth),
                            .gate_up = t.of(type, 2 * kRows * kWidth),
                            .silu = t.of(type, kRows * kWidth),
                            .ggate_up = t.of(type, 2 * kRows * kWidth),
                            .rows = kRows,
                            .m = kWidth,
                            .type = type},
                           {});
  });
  constexpr int64_t kVocabulary = 32000, kTokens = 4;
  const auto targets = [&](Tensors& t) {
    auto* p = static_cast<int64_t*>(t.blank(kTokens * 8));
    for (int64_t i = 0; i < kTokens; ++i) p[i] = 17 * i;
    return p;
  };
  const std::string loss = cat(text_of(type), ", ", kTokens, " x ", kVocabulary);
  good &= report(loss, [&](Tensors& t) {
    cuda().cross_entropy({.logits = t.of(type, kTokens * kVocabulary),
                          .targets = targets(t),
                          .lse = t.floats(kTokens),
                          .loss = t.floats(kTokens),
                          .rows = kTokens,
                          .vocabulary = kVocabulary,
                          .type = type},
                         {});
  });
  good &= report(loss, [&](Tensors& t) {
    void* logits = t.of(type, kTokens * kVocabulary);
    cuda().cross_entropy_backward({.logits = logits,
                                   .lse = t.floats(kTokens),
                                   .targets = targets(t),
                                   .grad = logits,
                                   .rows = kTokens,
                                   .vocabulary = kVocabulary,
                                   .scale = 0.5f,
                                   .type = type},
                                  {});
  });
  return good;
}

}  // namespace compact::kernels
