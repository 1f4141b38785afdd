// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/kernels/self_check_cases_impl.h"

namespace compact::kernels {
namespace {

constexpr int64_t kOfTraining = 48 * 2048;

void check_srht(Checker& c) {
  for (const bool transposed : {false, true}) {
    c.begin(transposed ? "srht_transpose" : "srht");
    for (const Type type : kTypes) {
      for (const int64_t n :
           c.either({1, 3, 16, 31, 64, 344, 1376, 2048, 5461, 11008, 14336, 54600}, {2048})) {
        if (!c.takes_srht(n)) continue;
        for (const int64_t r : c.either({1, (n + 3) / 4, n}, {n / 4})) {
          const int64_t rows = c.either({n > 11008  ? 1
                                         : n > 2048 ? 3
                                                    : 5},
                                        {48})[0],
                        stride = n + (r == 1 ? 3 : 0);
          const int64_t k = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n)));
          std::vector<uint32_t> signs(static_cast<size_t>((n + (k < n ? k : 0) + 31) / 32));
          for (size_t i = 0; i < signs.size(); ++i) signs[i] = philox(9, i).v[0];
          std::vector<int32_t> index(static_cast<size_t>(r));
          for (int64_t j = 0; j < r; ++j) index[j] = static_cast<int32_t>(j * n / r);
          const auto x = c.values(rows * stride, 1), z = c.values(rows * r, 2);
          for (const int64_t used : c.either({0, rows}, {rows})) {
            const auto what = cat(text_of(type), " n ", n, " r ", r, " rows ", used);
            c.compare(kClose, what, [&](const Backend& b, Side& s, const Launch& launch) {
              const SrhtPlan plan{s.data("signs", signs), s.data("index", index), n, r};
              if (transposed) {
                b.srht_transpose({.plan = plan,
                                  .z = s.tensor("z", z, type),
                                  .x = s.blank_floats("x", rows * n),
                                  .rows = used,
                                  .type = type},
                                 launch);
              } else {
                b.srht({.plan = plan,
                        .x = s.tensor("x", x, type),
                        .z = s.blank("z", rows * r, type),
                        .rows = used,
                        .x_stride = stride,
                        .type = type},
                       launch);
              }
            });
          }
        }
      }
    }
  }
}

void check_draw(Checker& c) {
  c.begin("draw");
  for (const Type type : kTypes) {
    for (const auto distribution :
         c.either<Distribution>({Distribution::kNormal, Distribution::kRademacher,
                                 Distribution::kSparse, Distribution::kUniform},
                                {Distribution::kNormal})) {
      for (const int64_t count : c.either({0, 1, 7, 1030, 20000}, {kOfTraining})) {
        const auto what =
            cat(text_of(type), " distribution ", static_cast<int>(distribution), " count ", count);
        c.compare(0, what, [&](const Backend& b, Side& s, const Launch& launch) {
          b.draw({.out = s.blank("out", count, type),
                  .count = count,
                  .key = 0x1234567890ull,
                  .scale = 0.3f,
                  .distribution = distribution,
                  .type = type},
                 launch);
        });
      }
    }
  }
}

void check_dropout(Checker& c) {
  c.begin("dropout");
  for (const Type type : kTypes) {
    for (const uint32_t dropped : c.either<uint32_t>({0u, 1u, 6554u, 65535u}, {6554u})) {
      for (const int64_t count : c.either({0, 1, 7, 256, 1030, 20001}, {kOfTraining})) {
        const auto x = c.values(count, 1, count == 1030);
        const auto what = cat(text_of(type), " dropped ", dropped, " count ", count);
        c.compare(0, what, [&](const Backend& b, Side& s, const Launch& launch) {
          void* from = s.tensor("x", x, type);
          b.dropout({.x = from,
                     .y = dropped == 1 ? from : s.blank("y", count, type),
                     .count = count,
                     .key = 0x1234567890ull,
                     .dropped = dropped,
                     .type = type},
                    launch);
        });
      }
    }
  }
}

const std::vector<AdamWNumbers> kNumbers = {
    {.lr = 0.03f, .bias1 = 0.19f, .bias2 = 0.002f, .key = 0x1234567890ull}};

void check_optimizer(Checker& c) {
  c.begin("adamw");
  for (const int mix : {0, 1, 2, 3, 4, 5, 6, 7}) {  // types of parameter, gradient, state
    const Type type = kTypes[mix & 1], grad = kTypes[mix >> 1 & 1], state = kTypes[mix >> 2];
    for (const int64_t count : c.either({0, 1, 7, 1030}, {kOfTraining})) {
      // 1: master and gradient scale; 2: NaN; 3: a guard that holds back; 4: one that does not; 5:
      // what changes is read from the device
      for (const int variant : c.either<int>({0, 1, 2, 3, 4, 5}, {0, 1})) {
        const auto p = c.values(count, 1), g = c.values(count, 2, variant == 2);
        const auto m = c.values(count, 3);
        auto v = c.values(count, 4);
        for (float& x : v) x = std::abs(x);
        const auto what = cat("types ", mix, " count ", count, " variant ", variant);
        c.compare(0, what, [&](const Backend& b, Side& s, const Launch& launch) {
          b.adamw({.param = s.tensor("param", p, type),
                   .master = variant == 1 ? s.floats("master", p) : nullptr,
                   .grad = s.tensor("grad", g, grad),
                   .grad_scale = variant == 1 ? s.floats("grad_scale", {{0.37f}}) : nullptr,
                   .m = s.tensor("m", m, state),
                   .v = s.tensor("v", v, state),
                   .count = count,
                   .lr = 0.01f,
                   .beta1 = 0.9f,
                   .beta2 = 0.999f,
                   .eps = 1e-6f,
                   .weight_decay = 0.1f,
                   .bias1 = 0.271f,
                   .bias2 = 0.003f,
                   .key = 77,
                   .type = type,
                   .grad_type = grad,
                   .state_type = state,
                   .guard = guard_of(s, variant - 3),
                   .numbers = variant == 5 ? s.data("numbers", kNumbers) : nullptr},
                  launch);
        });
      }
    }
  }
  c.begin("adamw_all");
  for (const int64_t tensors :
       c.either({0, 1, 3, 50, 200}, {})) {  // of several types, one after the other
    const auto what = cat(tensors, " tensors");
    c.compare(0, what, [&](const Backend& b, Side& s, const Launch& launch) {
      std::vector<AdamW> all;
      for (int64_t i = 0; i < tensors; ++i) {
        const int64_t count = i % 7 == 3 ? 0 : 1 + 37 * i % 2100;
        const auto seed = static_cast<uint64_t>(5 * i);
        const auto p = c.values(count, seed + 1);
        auto v = c.values(count, seed + 4);
        for (float& x : v) x = std::abs(x);
        const Type type = kTypes[i % 3 == 0];
        all.push_back({.param = s.tensor("param", p, type),
                       .master = i % 4 == 0 ? s.floats("master", p) : nullptr,
                       .grad = s.tensor("grad", c.values(count, seed + 2), type),
                       .m = s.tensor("m", c.values(count, seed + 3), kTypes[i % 2]),
                       .v = s.tensor("v", v, kTypes[i % 2]),
                       .count = count,
                       .lr = 0.01f * static_cast<float>(1 + i % 5),
                       .beta1 = 0.9f,
                       .beta2 = 0.999f,
                       .eps = 1e-6f,
                       .weight_decay = i % 2 ? 0.1f : 0.0f,
                       .bias1 = 0.271f,
                       .bias2 = 0.003f,
                       .key = 77 + seed,
                       .type = type,
                       .grad_type = type,
                       .state_type = kTypes[i % 2],
                       .numbers = i % 5 == 2 ? s.data("numbers", kNumbers) : nullptr});
      }
      b.adamw_all({all.data(), tensors}, launch);
    });
  }
  c.begin("fold");
  for (const Type type : kTypes) {
    for (const int64_t count : c.either({0, 1, 5, 1030}, {kOfTraining})) {
      for (const uint64_t offset : c.either<uint64_t>({0u, 3u, 8u, 4097u}, {0u})) {
        for (const int variant :
             c.either<int>({0, 1, 2, 3, 4}, {0, 1})) {  // 1: master; 2: NaN; 3, 4: guards as above
          const auto w = c.values(count, 1), d = c.values(count, 2, variant == 2);
          const auto what = cat(text_of(type), " count ", count, " offset ", offset, " ", variant);
          c.compare(0, what, [&](const Backend& b, Side& s, const Launch& launch) {
            b.fold({.w = s.tensor("w", w, type),
                    .master = variant == 1 ? s.floats("master", w) : nullptr,
                    .d = s.floats("d", d),
                    .count = count,
                    .decay = 0.99f,
                    .alpha = 0.25f,
                    .key = 5,
                    .offset = offset,
                    .type = type,
                    .guard = guard_of(s, variant - 3)},
                   launch);
          });
        }
      }
    }
  }
}

}  // namespace

void check_updates(Checker& c) {
  check_srht(c);
  check_draw(c);
  check_dropout(c);
  check_optimizer(c);
}

}  // namespace compact::kernels
