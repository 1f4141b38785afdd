// SPDX-License-Identifier: Apache-2.0
// Labelled images as batches of normalised floats, in training shifted and mirrored at random.
#pragma once

#include <vector>

#include "compact/data/images/images.h"
#include "compact/data/samples/dataset.h"

namespace compact {

// Mean and deviation of each channel, in units of the full range of a pixel.
struct PixelStatistics {
  std::vector<double> mean, deviation;
};
// Over all pixels; a deviation of 0 becomes 1. Throws InputError on no images.
PixelStatistics pixel_statistics(const at::Tensor& images);

// He et al. 2016: zeros around the image, a window of its size at random; and left for right half
// of the time.
struct Augmentation {
  int64_t shift = 0;  // pixels, of each side
  bool mirror = false;
};

// Batches: f32 [batch, channels, height, width] and int64 [batch].
class ImageDataset final : public Dataset {
 public:
  // The images whose numbers are in `chosen`. Throws InputError where there are none.
  ImageDataset(LabelledImages images, std::vector<int64_t> chosen, PixelStatistics statistics,
               Augmentation augmentation, uint64_t seed);

  const LabelledImages& images() const { return images_; }

 private:
  Batch collect(std::span<const Sample> samples) const override;

  LabelledImages images_;
  std::vector<int64_t> chosen_;
  PixelStatistics statistics_;
  Augmentation augmentation_;
};

}  // namespace compact
