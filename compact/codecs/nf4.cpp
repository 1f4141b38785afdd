// SPDX-License-Identifier: Apache-2.0
#include "compact/codecs/nf4.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "compact/base/check.h"
#include "compact/codecs/launch.h"
#include "compact/kernels/nf4.h"

namespace compact {
namespace {

using kernels::kNf4Block, kernels::kNf4Levels, kernels::kNf4Nested;

constexpr int64_t kLevels = 16, kMap = 256;
constexpr uint8_t kZero = 7;  // the code of 0

int64_t ceil_of(int64_t count, int64_t each) { return (count + each - 1) / each; }

// For each sign and power of ten from 1e-6 to 1 twice as many values as for the one below, at the
// middles of equal parts of [0.1, 1]; and 0 and 1.
std::array<float, kMap> nested_map() {
  constexpr float kPowers[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1};
  std::array<float, kMap> map{0, 1};
  size_t next = 2;
  int parts = 1;
  for (const float power : kPowers) {
    const float step = (1.0f - 0.1f) / static_cast<float>(parts);
    const auto bound = [&](int i) {
      return i < (parts + 1) / 2 ? std::fma(step, static_cast<float>(i), 0.1f)
                                 : std::fma(-step, static_cast<float>(parts - i), 1.0f);
    };
    for (int i = 0; i < parts; ++i) {
      const float value = power * ((bound(i) + bound(i + 1)) / 2);
      map[next++] = value;
      map[next++] = -value;
    }
    parts *= 2;
  }
  std::ranges::sort(map);
  return map;
}

// The nearest entry of the map for numbers of [-1, 1] on a grid, which is how bitsandbytes rounds.
constexpr int kGrid = 65535;
const std::array<uint8_t, kGrid + 1>& nearest_on_grid() {
  static const auto all = [] {
    const std::array<float, kMap> map = nested_map();
    std::array<uint8_t, kGrid + 1> codes{};
    size_t code = 0;
    for (size_t i = 0; i <= kGrid; ++i) {
      const double x = 2.0 * static_cast<double>(i) / kGrid - 1;
      while (code + 1 < kMap && (double{map[code]} + map[code + 1]) / 2 < x) ++code;
      codes[i] = static_cast<uint8_t>(code);
    }
    return codes;
  }();
  return all;
}

float largest_of(const float* x, int64_t count) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float size = std::abs(x[i]);
    if (!(size <= most)) most = size;  // also NaN, which nothing exceeds
    if (std::isnan(most)) return most;
  }
  return most;
}
float within_one(float x) { return x < -1 ? -1 : x > 1 ? 1 : x; }

// Codes of a block, in bytes of two, and its scale.
float encode_block(const float* x, int64_t count, uint8_t* codes) {
  constexpr float kLeast = 1e-38f;
  float scale = largest_of(x, count), y[kNf4Block] = {};
  const float divisor = scale < kLeast ? kLeast : scale;
  if (count == kNf4Block) {
    const float inverse = 1.0f / divisor;
    for (int64_t i = 0; i < count; ++i) y[i] = within_one(x[i] * inverse);
  } else {
    scale = divisor;
    for (int64_t i = 0; i < count; ++i) y[i] = within_one(x[i] / divisor);
  }
  uint8_t each[kNf4Block] = {};
  for (int k = 0; k + 1 < kLevels; ++k) {
    const float bound = (kNf4Levels[k] + kNf4Levels[k + 1]) / 2;
    for (int64_t i = 0; i < kNf4Block; ++i) each[i] += !(bound >= y[i]);
  }
  if (count % 2) each[count] = kZero;
  for (int64_t i = 0; i < count; i += 2) {
    codes[i / 2] = static_cast<uint8_t>(each[i] << 4 | each[i + 1]);
  }
  return scale;
}

// Codes of `count` scales whose offset is subtracted, and their scale.
float encode_scales(const float* x, int64_t count, uint8_t* codes) {
  const float largest = largest_of(x, count), inverse = 1.0f / largest;
  for (int64_t i = 0; i < count; ++i) {
    const float y = within_one(x[i] * inverse);
    const float at = (y + 1.0f) * 0.5f * kGrid + 0.5f;
    // All of 0: no code is better, and bitsandbytes takes the first.
    codes[i] = largest == 0 || std::isnan(at) ? 0 : nearest_on_grid()[static_cast<size_t>(at)];
  }
  return largest;
}

void nest_scales(Nf4& made, const at::Tensor& absmax) {
  // As one thread would: of two rows, since each is summed by one thread.
  const at::Tensor offset = absmax.expand({2, -1}).mean(1)[0];
  const at::Tensor rest = absmax.sub(offset);
  const float* const x = rest.const_data_ptr<float>();
  auto* const scales = made.scales.mutable_data_ptr<float>();
  auto* const codes = made.scale_codes.mutable_data_ptr<uint8_t>();
  const int64_t count = rest.numel(), groups = ceil_of(count, kNf4Nested);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t at = g * kNf4Nested;
    scales[g] = encode_scales(x + at, std::min(kNf4Nested, count - at), codes + at);
  }
  scales[groups] = offset.item<float>();
}

}  // namespace

std::vector<at::Tensor> Nf4::tensors() const {
  return nested() ? std::vector{codes, scales, scale_codes} : std::vector{codes, scales};
}

void Nf4::decode(const at::Tensor& to) const {
  TORCH_INTERNAL_ASSERT(to.dim() == 2 && to.size(0) == rows && to.size(1) == columns &&
                        (columns < 2 || to.stride(1) == 1));
  const auto bytes = [](const at::Tensor& t) {
    return t.defined() ? static_cast<const uint8_t*>(t.data_ptr()) : nullptr;
  };
  const float *const s = floats_of(scales), *const m = floats_of(maps);
  backend_of(to).nf4_decode({.codes = bytes(codes),
                             .scales = s,
                             .scale_codes = bytes(scale_codes),
                             .offset = nested() && s ? s + scales.numel() - 1 : nullptr,
                             .levels = m,
                             .map = m ? m + kLevels : nullptr,
                             .x = to.data_ptr(),
                             .rows = rows,
                             .n = columns,
                             .x_stride = rows < 2 ? columns : to.stride(0),
                             .type = type_of(to)},
                            launch_for(to));
}

at::Tensor nf4_maps() {
  const at::Tensor maps = at::empty({kLevels + kMap}, at::kFloat);
  auto* const to = maps.mutable_data_ptr<float>();
  std::ranges::copy(kNf4Levels, to);
  std::ranges::copy(nested_map(), to + kLevels);
  return maps;
}

Nf4 empty_nf4(int64_t rows, int64_t columns, bool nested, const at::Tensor& maps) {
  const int64_t count = rows * columns, blocks = ceil_of(count, kNf4Block);
  const at::TensorOptions bytes = at::device(maps.device()).dtype(at::kByte);
  return {.codes = at::empty({ceil_of(count, 2)}, bytes),
          .scales = at::empty({nested ? ceil_of(blocks, kNf4Nested) + 1 : blocks}, maps.options()),
          .scale_codes = nested ? at::empty({blocks}, bytes) : at::Tensor(),
          .maps = maps,
          .rows = rows,
          .columns = columns};
}

Nf4 encode_nf4(const at::Tensor& matrix, bool nested) {
  const at::NoGradGuard no_grad;
  COMPACT_CHECK(matrix.dim() == 2 && matrix.is_floating_point(),
                "[nf4] only matrices of floats have such codes");
  Nf4 made = empty_nf4(matrix.size(0), matrix.size(1), nested, nf4_maps());
  const at::Tensor x = matrix.cpu().contiguous().view({-1});
  const at::Tensor absmax =
      nested ? at::empty({ceil_of(x.numel(), kNf4Block)}, at::kFloat) : made.scales;
  auto* const codes = made.codes.mutable_data_ptr<uint8_t>();
  auto* const scales = absmax.mutable_data_ptr<float>();
  constexpr int64_t kSome = int64_t{1} << 20;  // elements that are in f32 at a time
  for (int64_t first = 0; first < x.numel(); first += kSome) {
    const int64_t count = std::min(kSome, x.numel() - first);
    const at::Tensor some = x.narrow(0, first, count).to(at::kFloat);
    const float* const from = some.const_data_ptr<float>();
    at::parallel_for(0, ceil_of(count, kNf4Block), 256, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t at = b * kNf4Block;
        scales[(first + at) / kNf4Block] =
            encode_block(from + at, std::min(kNf4Block, count - at), codes + (first + at) / 2);
      }
    });
  }
  if (nested) nest_scales(made, absmax);
  return made;
}

}  // namespace compact
