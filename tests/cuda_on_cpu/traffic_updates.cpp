// SPDX-License-Identifier: Apache-2.0
#include "traffic.h"

namespace compact::kernels {

bool traffic_of_updates(Type type) {
  bool good = true;
  constexpr int64_t kCount = kRows * kWidth, kRank = kWidth / 4;
  const auto plan = [](Tensors& t) {
    auto* index = static_cast<int32_t*>(t.blank(kRank * 4));
    for (int64_t j = 0; j < kRank; ++j) index[j] = static_cast<int32_t>(4 * j);
    return SrhtPlan{static_cast<const uint32_t*>(t.blank(kWidth / 8)), index, kWidth, kRank};
  };
  const std::string rows = cat(text_of(type), ", ", kRows, " x ", kWidth, " to ", kRank);
  good &= report(rows, [&](Tensors& t) {
    cuda().srht({.plan = plan(t),
                 .x = t.of(type, kCount),
                 .z = t.of(type, kRows * kRank),
                 .rows = kRows,
                 .x_stride = kWidth,
                 .type = type},
                {});
  });
  good &= report(rows, [&](Tensors& t) {
    cuda().srht_transpose({.plan = plan(t),
                           .z = t.of(type, kRows * kRank),
                           .x = t.floats(kCount),
                           .rows = kRows,
                           .type = type},
                          {});
  });
  const std::string on = cat(text_of(type), ", ", kCount);
  good &= report(on, [&](Tensors& t) {
    cuda().draw({.out = t.of(type, kCount),
                 .count = kCount,
                 .key = 1,
                 .scale = 1,
                 .distribution = Distribution::kNormal,
                 .type = type},
                {});
  });
  good &= report(on, [&](Tensors& t) {
    cuda().dropout({.x = t.of(type, kCount),
                    .y = t.of(type, kCount),
                    .count = kCount,
                    .key = 1,
                    .dropped = 6554,
                    .type = type},
                   {});
  });
  for (const Type state : kTypes) {
    for (const bool master : {false, true}) {
      good &=
          report(cat(on, ", moments ", text_of(state), master ? ", master" : ""), [&](Tensors& t) {
            cuda().adamw({.param = t.of(type, kCount),
                          .master = master ? t.floats(kCount) : nullptr,
                          .grad = t.of(type, kCount),
                          .m = t.of(state, kCount),
                          .v = t.of(state, kCount),
                          .count = kCount,
                          .lr = 0.01f,
                          .beta1 = 0.9f,
                          .beta2 = 0.99f,
                          .eps = 1e-8f,
                          .bias1 = 0.1f,
                          .bias2 = 0.01f,
                          .key = 5,
                          .type = type,
                          .grad_type = type,
                          .state_type = state},
                         {});
          });
    }
  }
  for (const bool master : {false, true}) {
    good &= report(cat(on, master ? ", master" : ""), [&](Tensors& t) {
      cuda().fold({.w = t.of(type, kCount),
                   .master = master ? t.floats(kCount) : nullptr,
                   .d = t.floats(kCount),
                   .count = kCount,
                   .decay = 1,
                   .alpha = 1,
                   .key = 5,
                   .offset = 0,
                   .type = type},
                  {});
    });
  }
  return good;
}

}  // namespace compact::kernels
