// SPDX-License-Identifier: Apache-2.0
#include "compact/data/images/image_dataset.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "compact/base/check.h"
#include "compact/base/philox.h"

namespace compact {

PixelStatistics pixel_statistics(const at::Tensor& images) {
  COMPACT_CHECK(images.dim() == 4 && images.numel() > 0, "no pixels in images of ", images.sizes());
  const int64_t channels = images.size(1), area = images.size(2) * images.size(3);
  const at::Tensor dense = images.contiguous();
  const uint8_t* pixels = dense.const_data_ptr<uint8_t>();
  PixelStatistics s;
  for (int64_t c = 0; c < channels; ++c) {
    std::array<int64_t, 256> counts{};
    for (int64_t i = 0; i < images.size(0); ++i) {
      const uint8_t* image = pixels + (i * channels + c) * area;
      for (int64_t p = 0; p < area; ++p) ++counts[image[p]];
    }
    double sum = 0, squares = 0;
    for (int value = 0; value < 256; ++value) {
      const double x = value / 255.0;
      sum += static_cast<double>(counts[value]) * x;
      squares += static_cast<double>(counts[value]) * x * x;
    }
    const auto all = static_cast<double>(images.size(0) * area);
    const double variance = squares / all - sum / all * (sum / all);
    s.mean.push_back(sum / all);
    s.deviation.push_back(variance > 1e-12 ? std::sqrt(variance) : 1);
  }
  return s;
}

ImageDataset::ImageDataset(LabelledImages images, std::vector<int64_t> chosen,
                           PixelStatistics statistics, Augmentation augmentation, uint64_t seed)
    : images_(std::move(images)),
      chosen_(std::move(chosen)),
      statistics_(std::move(statistics)),
      augmentation_(augmentation) {
  COMPACT_CHECK(!chosen_.empty(), "[images] no images");
  const auto channels = static_cast<size_t>(images_.images.size(1));
  COMPACT_CHECK(statistics_.mean.size() == channels && statistics_.deviation.size() == channels,
                "[images] mean and deviation must have ", channels, " values, have ",
                statistics_.mean.size(), " and ", statistics_.deviation.size());
  COMPACT_CHECK(augmentation.shift >= 0, "[images] the shift must not be negative, is ",
                augmentation.shift);
  images_.images = images_.images.contiguous();
  begin(static_cast<int64_t>(chosen_.size()), seed);
}

Batch ImageDataset::collect(std::span<const Sample> samples) const {
  const int64_t channels = images_.images.size(1), height = images_.images.size(2),
                width = images_.images.size(3), area = height * width;
  const auto count = static_cast<int64_t>(samples.size());
  Batch out{at::empty({count, channels, height, width}, at::kFloat), at::empty({count}, at::kLong)};
  const uint8_t* const pixels = images_.images.const_data_ptr<uint8_t>();
  const int64_t* const labels = images_.labels.const_data_ptr<int64_t>();
  float* const input = out.input.mutable_data_ptr<float>();
  int64_t* const target = out.target.mutable_data_ptr<int64_t>();
  // A pixel's value by its byte, and that of the zeros around.
  std::vector<std::array<float, 256>> values(static_cast<size_t>(channels));
  for (size_t c = 0; c < values.size(); ++c) {
    for (int v = 0; v < 256; ++v) {
      values[c][v] =
          static_cast<float>((v / 255.0 - statistics_.mean[c]) / statistics_.deviation[c]);
    }
  }
  const uint64_t places = 2 * static_cast<uint64_t>(augmentation_.shift) + 1;
  for (int64_t b = 0; b < count; ++b) {
    const Sample& sample = samples[b];
    const int64_t number = chosen_[sample.number];
    const Random4 random = philox(sample.key, 0, 0);
    const auto shift = [&](int i) {
      return sample.training ? static_cast<int64_t>(random.v[i] % places) - augmentation_.shift : 0;
    };
    const int64_t down = shift(0), right = shift(1);
    const bool mirror = sample.training && augmentation_.mirror && (random.v[2] & 1);
    target[b] = labels[number];
    for (int64_t c = 0; c < channels; ++c) {
      const uint8_t* const from = pixels + (number * channels + c) * area;
      float* const to = input + (b * channels + c) * area;
      const auto& value = values[c];
      for (int64_t y = 0; y < height; ++y) {
        const int64_t row = y + down;
        for (int64_t x = 0; x < width; ++x) {
          const int64_t column = (mirror ? width - 1 - x : x) + right;
          const bool inside = row >= 0 && row < height && column >= 0 && column < width;
          to[y * width + x] = inside ? value[from[row * width + column]] : value[0];
        }
      }
    }
  }
  return out;
}

}  // namespace compact
