// SPDX-License-Identifier: Apache-2.0
// The angles of rotary positions, in the order of operations of Hugging Face: f32 inverse
// frequencies, f32 products.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "compact/base/check.h"
#include "compact/ops/stages/stages.h"

namespace compact {
namespace {

// base^(2i / width), f32 [width / 2]
at::Tensor wavelengths(double base, int64_t width) {
  const at::Tensor exponent =
      at::arange(0, width, 2, at::kLong).to(at::kFloat) / static_cast<double>(width);
  return at::pow(base, exponent);
}

// Short waves are as they are, long ones divided by the factor, those between a mixture of both.
at::Tensor llama3_frequencies(const RopeConfig& c, const at::Tensor& plain) {
  const auto length = static_cast<double>(c.original_length);
  const double factor = *c.factor, low = c.low_freq_factor, high = c.high_freq_factor;
  const at::Tensor wave = 2 * std::numbers::pi * plain.reciprocal();
  const at::Tensor smooth = (length * wave.reciprocal() - low) / (high - low);
  const at::Tensor mixed = (1 - smooth) * plain / factor + smooth * plain;
  const at::Tensor ends = at::where(wave > length / low, plain / factor, plain);
  return at::where(wave.lt(length / high).logical_or(wave > length / low), ends, mixed);
}

at::Tensor yarn_frequencies(const RopeConfig& c, double factor, int64_t width) {
  const auto angle_of = [&](double turns) {
    const double length = static_cast<double>(c.original_length);
    return static_cast<double>(width) * std::log(length / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(c.theta));
  };
  double first = angle_of(c.beta_fast), last = angle_of(c.beta_slow);
  if (c.truncate) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0), last = std::min(last, static_cast<double>(width - 1));
  if (first == last) last += 0.001;
  const at::Tensor slow =
      ((at::arange(width / 2).to(at::kFloat) - first) / (last - first)).clamp(0, 1);
  const at::Tensor waves = wavelengths(c.theta, width), quick = 1 - slow;
  return (factor * waves).reciprocal() * (1 - quick) + waves.reciprocal() * quick;
}

// The factor of cosines and sines, whose square is the factor of scores.
double attention_factor(const RopeConfig& c, double factor) {
  if (c.attention_factor) return *c.attention_factor;
  if (c.kind == RopeKind::kLongrope) {
    const double length = static_cast<double>(c.original_length);
    return factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(length));
  }
  if (c.kind != RopeKind::kYarn) return 1;
  const auto scale = [&](double m) { return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1; };
  const double m = c.mscale.value_or(0), all = c.mscale_all_dim.value_or(0);
  return m != 0 && all != 0 ? scale(m) / scale(all) : scale(1);
}

struct Frequencies {
  at::Tensor values;  // f32 [width / 2]
  double scale = 1;   // of cosines and sines
};

// `length`: of the sequence, where the kind depends on it.
Frequencies frequencies(const RopeConfig& c, int64_t width, int64_t max_positions, int64_t length) {
  const auto positions = static_cast<double>(max_positions);
  const double factor =
      c.factor.value_or(positions / static_cast<double>(std::max<int64_t>(1, c.original_length)));
  const double scale = attention_factor(c, factor);
  switch (c.kind) {
    case RopeKind::kYarn:
      return {yarn_frequencies(c, factor, width), scale};
    case RopeKind::kLongrope: {
      const std::vector<double>& own = length > c.original_length ? c.long_factor : c.short_factor;
      const at::Tensor factors = at::tensor(own, at::kDouble).to(at::kFloat);
      return {(factors * wavelengths(c.theta, width)).reciprocal(), scale};
    }
    case RopeKind::kDynamic: {
      const double longer = std::max(static_cast<double>(length), positions) / positions;
      const auto w = static_cast<double>(width);
      const double base = c.theta * std::pow(factor * longer - (factor - 1), w / (w - 2));
      return {wavelengths(base, width).reciprocal()};
    }
    default:
      break;
  }
  const at::Tensor plain = wavelengths(c.theta, width).reciprocal();
  if (c.kind == RopeKind::kLinear) return {plain / factor};
  if (c.kind == RopeKind::kLlama3) return {llama3_frequencies(c, plain)};
  return {plain};
}

RopeAngles angles_of(const RopeConfig& c, int64_t width, int64_t max_positions, int64_t length,
                     int64_t rows, at::Device device) {
  if (device.is_meta()) {  // plans read no values
    const auto f32 = at::TensorOptions().device(device).dtype(at::kFloat);
    return {at::empty({rows, width / 2}, f32), at::empty({rows, width / 2}, f32)};
  }
  const auto [values, scale] = frequencies(c, width, max_positions, length);
  const at::Tensor angle =
      at::arange(rows, at::kLong).to(at::kFloat).unsqueeze(1) * values.unsqueeze(0);
  at::Tensor cos = angle.cos(), sin = angle.sin();
  if (scale != 1) cos.mul_(scale), sin.mul_(scale);
  return {cos.to(device), sin.to(device)};
}

}  // namespace

RopeTables RopeTables::make(const RopeConfig& config, int64_t dim, int64_t max_positions,
                            int64_t length, at::Device device) {
  check_rope_config(config, dim, "[rope]");
  const int64_t width = rotated_width(config, dim);
  const int64_t limit = config.kind == RopeKind::kDynamic    ? max_positions
                        : config.kind == RopeKind::kLongrope ? config.original_length
                                                             : length;
  const auto angles = [&](int64_t of, int64_t rows) {
    return angles_of(config, width, max_positions, of, rows, device);
  };
  RopeTables tables{.near = angles(std::min(length, limit), std::min(length, limit))};
  if (length > limit) tables.far = angles(length, length), tables.limit = limit;
  return tables;
}

}  // namespace compact
