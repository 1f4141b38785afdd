// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "compact/base/check.h"
#include "compact/kernels/self_check_cases_impl.h"

namespace compact::kernels {
namespace {

struct TypePair {
  Type type, weight_type;
};
constexpr TypePair kTypePairs[] = {{Type::kFloat32, Type::kFloat32},
                                   {Type::kFloat32, Type::kBFloat16},
                                   {Type::kBFloat16, Type::kFloat32},
                                   {Type::kBFloat16, Type::kBFloat16}};

void check_rms_norm(Checker& c) {
  const int64_t parts = c.either({32}, {3})[0];
  for (const bool backward : {false, true}) {
    c.begin(backward ? "rms_norm_backward" : "rms_norm");
    for (const auto [type, weight_type] : kTypePairs) {
      for (const int64_t rows : c.either({0, 1, 3, 77}, {48})) {
        for (const int64_t n : c.either({1, 7, 64, 100, 344, 2048, 16400}, {2048})) {
          if (n > 2048 && rows > 3) continue;
          for (const int variant :
               c.either<int>({0, 1, 2}, {0})) {  // 1: no residual, no gweight; 2: NaN
            const bool full = variant != 1, special = variant == 2;
            const auto what = cat(text_of(type), ", weight ", text_of(weight_type), " [", rows,
                                  ", ", n, "] variant ", variant);
            const auto x = c.values(rows * n, 1, special), w = c.values(n, 2);
            const auto g = c.values(rows * n, 3), add = c.values(rows * n, 4);
            auto rstd = c.values(rows, 5, special);
            c.compare(kClose, what, [&](const Backend& b, Side& s, const Launch& launch) {
              if (!backward) {
                b.rms_norm({.x = s.tensor("x", x, type),
                            .weight = s.tensor("weight", w, weight_type),
                            .y = s.blank("y", rows * n, type),
                            .rstd = s.blank_floats("rstd", rows),
                            .rows = rows,
                            .n = n,
                            .eps = 1e-6f,
                            .type = type,
                            .weight_type = weight_type},
                           launch);
                return;
              }
              void* gy = s.tensor("gy", g, type);
              void* residual = variant != 1 ? s.tensor("residual", add, type) : nullptr;
              // In place of the gradient, of nothing, of the residual.
              void* gx = variant == 0   ? gy
                         : variant == 1 ? s.blank("gx", rows * n, type)
                                        : residual;
              b.rms_norm_backward({.gy = gy,
                                   .x = s.tensor("x", x, type),
                                   .weight = s.tensor("weight", w, weight_type),
                                   .rstd = s.floats("rstd", rstd),
                                   .residual = residual,
                                   .gx = gx,
                                   .gweight = full ? s.blank("gweight", n, weight_type) : nullptr,
                                   .parts = s.scratch("parts", parts * n),
                                   .rows = rows,
                                   .n = n,
                                   .parts_count = parts,
                                   .type = type,
                                   .weight_type = weight_type},
                                  launch);
            });
          }
        }
      }
    }
  }
}

void check_rope(Checker& c) {
  c.begin("rope");
  for (const Type type : kTypes) {
    for (const int64_t dim : c.either({2, 6, 32, 64}, {64, 128})) {
      for (const int64_t tokens : c.either({0, 1, 37}, {48})) {
        for (const int64_t extra : c.either({0, 3, 64}, {0})) {
          // Only the first part of wide heads is turned.
          const int64_t heads = c.either({3}, {2048 / dim})[0], length = c.either({5}, {48})[0];
          const int64_t wide = extra == 64 ? dim + dim / 2 : dim;
          const int64_t stride = heads * wide + extra;
          const auto x = c.values(tokens * stride, 1, extra == 3);
          const auto cosines = c.values(length * dim / 2, 2), sines = c.values(length * dim / 2, 3);
          const auto what = cat(text_of(type), " dim ", dim, " tokens ", tokens, " +", extra);
          c.compare(0, what, [&](const Backend& b, Side& s, const Launch& launch) {
            b.rope({.x = s.tensor("x", x, type),
                    .cos = s.floats("cos", cosines),
                    .sin = s.floats("sin", sines),
                    .tokens = tokens,
                    .length = length,
                    .heads = heads,
                    .dim = dim,
                    .head_stride = wide,
                    .row_stride = stride,
                    .inverse = extra == 64,
                    .type = type},
                   launch);
          });
        }
      }
    }
  }
}

void check_swiglu(Checker& c) {
  for (const bool backward : {false, true}) {
    c.begin(backward ? "swiglu_backward" : "swiglu");
    for (const Type type : kTypes) {
      // A silu that is rounded the other way moves the product by up to three units.
      const double tolerance = type == Type::kBFloat16 ? 1.0 / 64 : kClose;
      for (const int64_t rows : c.either({0, 1, 5, 40}, {48})) {
        for (const int64_t m : c.either({1, 7, 64, 341, 1376}, {2048})) {
          for (const int variant :
               c.either<int>({0, 1, 2}, {2})) {  // which of silu and product; 2: NaN
            auto gates = c.values(rows * 2 * m, 1, variant == 2);
            for (float& x : gates) x *= 6;
            const auto g = c.values(rows * m, 2), silu = c.values(rows * m, 3);
            const auto what = cat(text_of(type), " [", rows, ", ", m, "] variant ", variant);
            c.compare(tolerance, what, [&](const Backend& b, Side& s, const Launch& launch) {
              void* gate_up = s.tensor("gate_up", gates, type);
              if (backward) {
                b.swiglu_backward(
                    {.gproduct = s.tensor("gproduct", g, type),
                     .gate_up = gate_up,
                     .silu = variant == 1 ? s.tensor("silu", silu, type) : nullptr,
                     .ggate_up = variant == 1 ? gate_up : s.blank("ggate_up", rows * 2 * m, type),
                     .rows = rows,
                     .m = m,
                     .type = type},
                    launch);
                return;
              }
              b.swiglu({.gate_up = gate_up,
                        .silu = variant != 0 ? s.blank("silu", rows * m, type) : nullptr,
                        .product = variant != 1 ? s.blank("product", rows * m, type) : nullptr,
                        .rows = rows,
                        .m = m,
                        .type = type},
                       launch);
            });
          }
        }
      }
    }
  }
}

void check_cross_entropy(Checker& c) {
  for (const bool backward : {false, true}) {
    c.begin(backward ? "cross_entropy_backward" : "cross_entropy");
    for (const Type type : kTypes) {
      for (const int64_t rows : c.either({0, 1, 9}, {4})) {
        for (const int64_t vocabulary : c.either({1, 5, 256, 1001, 8192}, {32000})) {
          // 1, 2, 3: with log_probs; 2: NaN; 3: rows of minus infinity but for some elements
          for (const int variant : c.either<int>({0, 1, 2, 3}, {0})) {
            auto logits = c.values(rows * vocabulary, 1, variant == 2);
            for (float& x : logits) x *= 8;
            for (int64_t i = 0; variant == 3 && i < rows * vocabulary; ++i) {
              const bool kept = i / vocabulary % 2 == 1 && i % 97 == 5;
              if (!kept) logits[i] = -std::numeric_limits<float>::infinity();
            }
            const auto lse = c.values(rows, 2);
            std::vector<int64_t> targets(static_cast<size_t>(rows));
            for (int64_t i = 0; i < rows; ++i) {
              targets[i] = i % 4 == 2 ? kIgnoreIndex : i * 37 % vocabulary;
            }
            // No classes: beyond both ends.
            if (rows > 4) targets[3] = vocabulary, targets[4] = -1;
            if (rows > 5) targets[5] = std::numeric_limits<int64_t>::max();
            const auto what =
                cat(text_of(type), " [", rows, ", ", vocabulary, "] variant ", variant);
            c.compare(kClose, what, [&](const Backend& b, Side& s, const Launch& launch) {
              const int64_t* t = s.data("targets", targets);
              if (backward) {
                void* in = variant != 1 ? s.tensor("logits", logits, type) : nullptr;
                b.cross_entropy_backward(
                    {.logits = in,
                     .log_probs = in ? nullptr : s.floats("log_probs", logits),
                     .lse = s.floats("lse", lse),
                     .targets = t,
                     .grad = in && variant != 2 ? in : s.blank("grad", rows * vocabulary, type),
                     .rows = rows,
                     .vocabulary = vocabulary,
                     .scale = 0.125f,
                     .type = type},
                    launch);
                return;
              }
              b.cross_entropy(
                  {.logits = s.tensor("logits", logits, type),
                   .targets = t,
                   .lse = s.blank_floats("lse", rows),
                   .loss = s.blank_floats("loss", rows),
                   .log_probs =
                       variant != 0 ? s.blank_floats("log_probs", rows * vocabulary) : nullptr,
                   .rows = rows,
                   .vocabulary = vocabulary,
                   .type = type},
                  launch);
            });
          }
        }
      }
    }
  }
}

}  // namespace

void check_layers(Checker& c) {
  check_rms_norm(c);
  check_rope(c);
  check_swiglu(c);
  check_cross_entropy(c);
}

}  // namespace compact::kernels
