// SPDX-License-Identifier: Apache-2.0
// The kernels of codecs and projections beside a copy and PyTorch's own operations.
#pragma once

#include <bit>

#include "bench/kernel_bench.h"
#include "compact/codecs/nf4.h"

namespace k = compact::kernels;

class CodecKernels : public KernelBench {
 public:
  using KernelBench::KernelBench;

  void run(at::ScalarType type) {
    srht(type, 2048);
    srht(type, 1376);
    draw(type);
    if (type == at::kFloat) float8();
    for (const int bits : {8, 4, 2}) quantize(type, bits);
    for (const bool nested : {false, true}) nf4(type, nested);
    bits(type);
  }

 private:
  void srht(at::ScalarType type, int64_t n) {
    const int64_t rows = 8192 * larger(), r = n / 4,
                  width = n + static_cast<int64_t>(std::bit_floor<uint64_t>(n));
    const Tensor x = at::randn({rows, n}, on(type)), p = at::randn({n, r}, on(type));
    const Tensor signs = at::randint(1 << 30, {width / 32 + 1}, on(at::kInt));
    const Tensor index =
        std::get<0>(at::randperm(n, on(at::kLong)).narrow(0, 0, r).sort()).to(at::kInt);
    const Tensor back = at::empty({rows, n}, on(at::kFloat));
    Tensor z = at::empty({rows, r}, on(type));
    const k::SrhtPlan plan = {static_cast<const uint32_t*>(signs.data_ptr()),
                              index.data_ptr<int32_t>(), n, r};
    const k::Type t = compact::type_of(type);
    measure(
        "srht n=" + std::to_string(n), type, x.nbytes() + z.nbytes(),
        [&] {
          backend().srht({plan, x.data_ptr(), z.data_ptr(), rows, n, t}, launch());
        },
        [&] { at::mm_out(z, x, p); });
    const Tensor pt = p.t();
    measure(
        "srht_transpose n=" + std::to_string(n), type, z.nbytes() + back.nbytes(),
        [&] {
          backend().srht_transpose({plan, z.data_ptr(), back.data_ptr<float>(), rows, t}, launch());
        },
        [&] { at::mm(z, pt); });
  }

  void draw(at::ScalarType type) {
    Tensor out = at::empty({(1 << 20) * larger()}, on(type));
    measure(
        "draw normal", type, out.nbytes(),
        [&] {
          backend().draw({out.data_ptr(), out.numel(), 7, 1.0f, k::Distribution::kNormal,
                          compact::type_of(type)},
                         launch());
        },
        [&] { out.normal_(); });
  }

  // Beside the cast to one byte that ATen has, which has no scale and rounds to nearest.
  void float8() {
    const Tensor x = at::randn({(1 << 13) * larger(), 1 << 10}, on(at::kFloat)),
                 y = at::empty_like(x);
    const Tensor codes = at::empty(x.sizes(), on(at::kByte));
    const Tensor scales = at::empty({x.size(0), 4}, on(at::kFloat));
    const Tensor plain = x.to(at::kFloat8_e4m3fn);
    auto* bytes = static_cast<uint8_t*>(codes.data_ptr());
    const k::Float8Pack pack{.x = x.const_data_ptr<float>(),
                             .codes = bytes,
                             .scales = scales.data_ptr<float>(),
                             .rows = x.size(0),
                             .n = x.size(1),
                             .is_signed = true,
                             .key = 3};
    measure(
        "float8_pack", at::kFloat, x.nbytes() + codes.nbytes() + scales.nbytes(),
        [&] { backend().float8_pack(pack, launch()); }, [&] { plain.copy_(x); });
    const k::Float8Unpack unpack{.codes = bytes,
                                 .scales = scales.const_data_ptr<float>(),
                                 .x = y.data_ptr<float>(),
                                 .rows = x.size(0),
                                 .n = x.size(1),
                                 .is_signed = true};
    measure(
        "float8_unpack", at::kFloat, x.nbytes() + codes.nbytes() + scales.nbytes(),
        [&] { backend().float8_unpack(unpack, launch()); }, [&] { y.copy_(plain); });
  }

  // Beside a cast to one byte, too.
  void quantize(at::ScalarType type, int bits) {
    const int64_t rows = 4096 * larger(), n = 2048;
    const k::QuantizeFormat format{.bits = bits,
                                   .group = 256,
                                   .rounding = k::Rounding::kStochastic,
                                   .levels = k::Levels::kUniform,
                                   .scale = k::Type::kBFloat16};
    const Tensor x = at::randn({rows, n}, on(type)), y = at::empty_like(x);
    const Tensor codes = at::empty({rows, format.row_bytes(n)}, on(at::kByte));
    const Tensor scales = at::empty({rows, format.groups(n), 2}, on(at::kBFloat16));
    const Tensor plain = at::empty({rows, n}, on(at::kByte));
    auto* bytes = static_cast<uint8_t*>(codes.data_ptr());
    const k::Type t = compact::type_of(type);
    const size_t moved = x.nbytes() + codes.nbytes() + scales.nbytes();
    const std::string name = "quantize bits=" + std::to_string(bits);
    measure(
        name, type, moved,
        [&] {
          backend().quantize(
              {format, x.data_ptr(), bytes, scales.data_ptr(), rows, n, /*key=*/3, t}, launch());
        },
        [&] { plain.copy_(x); });
    measure(
        "de" + name, type, moved,
        [&] {
          backend().dequantize({format, bytes, scales.data_ptr(), y.data_ptr(), rows, n, t},
                               launch());
        },
        [&] { y.copy_(plain); });
  }

  // A matrix of a model, beside a cast from bytes.
  void nf4(at::ScalarType type, bool nested) {
    const int64_t rows = 2048 * larger(), n = 2048;
    const compact::Nf4 one = compact::encode_nf4(at::randn({rows, n}), nested);
    const compact::Nf4 codes =
        compact::empty_nf4(rows, n, nested, one.maps.to(on(at::kFloat).device()));
    size_t moved = 0;
    for (size_t i = 0; i < one.tensors().size(); ++i) {
      codes.tensors()[i].copy_(one.tensors()[i]);
      moved += one.tensors()[i].nbytes();
    }
    const Tensor y = at::empty({rows, n}, on(type)), plain = at::empty({rows, n}, on(at::kByte));
    measure(
        nested ? "nf4_decode nested" : "nf4_decode", type, moved + y.nbytes(),
        [&] { codes.decode(y); }, [&] { y.copy_(plain); });
  }

  // One bit for what is above 0, beside bytes.
  void bits(at::ScalarType type) {
    const int64_t count = (1 << 23) * larger();
    const Tensor x = at::randn({count}, on(type)), y = at::empty_like(x);
    const Tensor bits = at::empty({count / 8}, on(at::kByte));
    Tensor plain = at::empty({count}, on(at::kBool));
    const int element = static_cast<int>(x.element_size());
    const uint32_t infinity = type == at::kFloat ? 0x7f800000u : 0x7f80u;
    auto* bytes = static_cast<uint8_t*>(bits.data_ptr());
    measure(
        "bit_pack", type, x.nbytes() + bits.nbytes(),
        [&] {
          backend().bit_pack({.x = x.data_ptr(),
                              .bits = bytes,
                              .strays = nullptr,
                              .count = count,
                              .element = element,
                              .low = 1,
                              .span = infinity,
                              .other = 0},
                             launch());
        },
        [&] { at::gt_out(plain, x, 0); });
    measure(
        "bit_unpack", type, y.nbytes() + bits.nbytes(),
        [&] {
          backend().bit_unpack({.bits = bytes,
                                .x = y.data_ptr(),
                                .count = count,
                                .element = element,
                                .zero = 0,
                                .one = type == at::kFloat ? 0x3f800000u : 0x3f80u},
                               launch());
        },
        [&] { y.copy_(plain); });
  }
};
