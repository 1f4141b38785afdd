// SPDX-License-Identifier: Apache-2.0
// cuda_traffic: sectors that the warps of every CUDA kernel touch beside the least possible, on
// rows as training has them. Exit code 1 where a kernel touches more than kMost times the least.
#include <bit>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/kernels/dispatch.h"
#include "compact/kernels/self_check.h"
#include "cuda_runtime.h"
#include "sectors.h"

namespace compact::kernels {
namespace {

constexpr double kMost = 1.15;
constexpr Type kTypes[] = {Type::kFloat32, Type::kBFloat16};
const char* text_of(Type type) { return type == Type::kFloat32 ? "f32" : "bf16"; }

// Tensors of one call on the emulated device.
class Tensors {
 public:
  ~Tensors() {
    for (void* p : all_) emulated::release(p);
  }
  // `count` values of about 1.
  void* of(Type type, int64_t count) {
    void* p = blank(count * (type == Type::kFloat32 ? 4 : 2));
    with_type(type, [&]<class T>() {
      for (int64_t i = 0; i < count; ++i) {
        const Random4 r = philox(3, static_cast<uint64_t>(i));
        store(static_cast<T*>(p)[i], static_cast<float>(static_cast<int32_t>(r.v[0])) * 0x1p-30f);
      }
    });
    return p;
  }
  float* floats(int64_t count) { return static_cast<float*>(of(Type::kFloat32, count)); }
  void* blank(int64_t bytes) {
    all_.push_back(emulated::allocate(static_cast<size_t>(bytes)));
    return all_.back();
  }
  uint8_t* bytes(int64_t count) { return static_cast<uint8_t*>(blank(count)); }

 private:
  std::vector<void*> all_;
};

const Backend& cuda() { return backend_for(Device::kCuda); }

bool report(const std::string& what, const std::function<void(Tensors&)>& run) {
  Tensors tensors;
  run(tensors);
  if (cudaDeviceSynchronize() != cudaSuccess) fail(what, ": ", emulated::error_text());
  bool good = true;
  for (const auto& [name, t] : emulated::take_traffic()) {
    const double ratio = static_cast<double>(t.touched) / static_cast<double>(t.least);
    std::printf("| %s | %s | %llu | %llu | %.2f |\n", name.c_str(), what.c_str(),
                static_cast<unsigned long long>(t.touched),
                static_cast<unsigned long long>(t.least), ratio);
    good &= ratio <= kMost;
  }
  return good;
}

// A block of the emulator walks over sixteen rows, as one of 2,048 does over 32,768.
constexpr int64_t kRows = 48, kWidth = 2048, kParts = 3;

bool layers(Type type) {
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

bool updates(Type type) {
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

bool codecs(Type type) {
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

bool all() {
  emulated::count_sectors(true);
  std::printf("| kernel | on | sectors | least | ratio |\n|---|---|--:|--:|--:|\n");
  bool good = true;
  for (const Type type : kTypes) {
    good &= layers(type);
    good &= updates(type);
    good &= codecs(type);
  }
  if (!good) std::printf("a kernel touches more than %.2f times the least\n", kMost);
  return good;
}

}  // namespace
}  // namespace compact::kernels

int main() {
  try {
    return compact::kernels::all() ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
