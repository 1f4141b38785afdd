// SPDX-License-Identifier: Apache-2.0
// preprocessor_config.json as published folders have it.
#include "compact/models/image_processor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json processor(const char* type, const json& more) {
  json all = {{"image_processor_type", type},
              {"image_mean", {0.5, 0.4, 0.3}},
              {"image_std", {0.2, 0.25, 0.3}}};
  all.update(more);
  return all;
}
ModelShape read(const json& object) {
  ModelShape shape{.channels = 3, .height = 1, .width = 1};
  read_image_processor(object, "here", shape);
  return shape;
}

TEST(ImageProcessor, ReadsSizesAndFits) {
  const struct {
    json object;
    int64_t height, width;
    ImageFit fit;
  } cases[] = {
      {processor("ViTFeatureExtractor", {{"size", 224}, {"resample", 2}}),
       224,
       224,
       {.stretch = true}},
      {processor("ViTImageProcessor", {{"size", {{"height", 8}, {"width", 20}}}}),
       8,
       20,
       {.stretch = true}},
      {processor("ConvNextFeatureExtractor", {{"size", 224}, {"crop_pct", 0.875}, {"resample", 3}}),
       224,
       224,
       {.middle = 0.875, .bicubic = true}},
      {processor("ConvNextImageProcessor", {{"size", {{"shortest_edge", 384}}}, {"resample", 3}}),
       384,
       384,
       {.stretch = true, .bicubic = true}},
      {processor("ConvNextImageProcessorFast",
                 {{"size", {{"shortest_edge", 32}}}, {"crop_pct", nullptr}, {"resample", 2}}),
       32,
       32,
       {.middle = 32.0 / 36}},
      {processor("CLIPImageProcessor", {{"size", {{"shortest_edge", 256}}},
                                        {"crop_size", {{"height", 224}, {"width", 224}}}}),
       224,
       224,
       {.middle = 0.875, .bicubic = true}},
      {processor("DeiTImageProcessor",
                 {{"size", {{"height", 256}, {"width", 256}}}, {"crop_size", 224}}),
       224,
       224,
       {.stretch = true, .middle = 0.875, .bicubic = true}},
  };
  for (const auto& c : cases) {
    const ModelShape got = read(c.object);
    EXPECT_EQ(got.height, c.height) << c.object;
    EXPECT_EQ(got.width, c.width) << c.object;
    EXPECT_EQ(got.image_fit, c.fit) << c.object;
    EXPECT_EQ(got.mean, (std::vector<double>{0.5, 0.4, 0.3}));
    // The written file means the same.
    const auto files = image_processor_files(got);
    const ModelShape again = read(json::parse(files.at("preprocessor_config.json")));
    EXPECT_EQ(again.height, c.height) << c.object;
    EXPECT_EQ(again.width, c.width) << c.object;
    EXPECT_EQ(again.image_fit, c.fit) << c.object;
    EXPECT_EQ(again.deviation, got.deviation);
  }
}

// Beside models that are trained here first.
TEST(ImageProcessor, OfASquareCutsAsTrainingDoes) {
  const ModelShape shape{
      .channels = 1, .height = 28, .width = 28, .mean = {0.1}, .deviation = {0.3}, .image_fit = {}};
  ModelShape again{.channels = 1};
  read_image_processor(json::parse(image_processor_files(shape).begin()->second), "here", again);
  EXPECT_EQ(again.image_fit, ImageFit{});
  EXPECT_EQ(again.height, 28);
}

// Sizes that the file of transformers cannot express are written beside it.
TEST(ImageProcessor, OfAnOblongIsReadBackAsItWasWritten) {
  for (const bool stretch : {false, true}) {
    const ModelShape shape{.channels = 3,
                           .height = 32,
                           .width = 48,
                           .mean = {0.1, 0.1, 0.1},
                           .deviation = {0.3, 0.3, 0.3},
                           .image_fit = {.stretch = stretch}};
    const ModelShape again = read(json::parse(image_processor_files(shape).begin()->second));
    EXPECT_EQ(again.image_fit, shape.image_fit);
    EXPECT_EQ(again.height, 32);
    EXPECT_EQ(again.width, 48);
  }
}

TEST(ImageProcessor, ScalesPixelsAsTheFileSays) {
  const json usual = {{"size", 8}};
  const auto with = [&](json more) {
    more.update(usual);
    return read(processor("ViTImageProcessor", more));
  };
  EXPECT_EQ(with({{"do_normalize", false}}).mean, (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(with({{"do_normalize", false}}).deviation, (std::vector<double>{1, 1, 1}));
  // Pixels of 0 to 255, and of 0 to 2.
  EXPECT_DOUBLE_EQ(with({{"do_rescale", false}}).mean[0], 0.5 / 255);
  EXPECT_DOUBLE_EQ(with({{"do_rescale", false}}).deviation[1], 0.25 / 255);
  EXPECT_DOUBLE_EQ(with({{"rescale_factor", 1 / 127.5}}).mean[0], 0.25);
  EXPECT_DOUBLE_EQ(with({{"rescale_factor", 1 / 127.5}}).deviation[0], 0.1);
  EXPECT_EQ(with({{"rescale_factor", 1 / 255.0}}).mean[0], 0.5);
}

TEST(ImageProcessor, RefusesWithKeyRuleAndValue) {
  const struct {
    json object;
    const char* message;
  } cases[] = {
      {processor("BlipImageProcessor", {{"size", 8}}), "image_processor_type must be that of ViT"},
      {processor("ViTImageProcessor", json::object()), "size must be given"},
      {processor("ViTImageProcessor", {{"size", 0}}), "size must be from 1 to 4096 pixels, is 0"},
      {processor("ViTImageProcessor", {{"size", {{"height", 8}}}}), "width must be given"},
      {processor("ViTImageProcessor", {{"size", 8}, {"resample", 0}}), "resample must be 2"},
      {processor("ViTImageProcessor", {{"size", 8}, {"image_mean", {0.5}}}),
       "image_mean must have a value for each of 3 channels, has 1"},
      {processor("ViTImageProcessor", {{"size", 8}, {"image_std", {0, 1, 1}}}),
       "image_std must be"},
      {processor("ViTImageProcessor", {{"size", 8}, {"rescale_factor", -1}}),
       "rescale_factor must"},
      {processor("ViTImageProcessor", {{"size", 8}, {"do_pad", true}}), "do_pad must be false"},
      {processor("ConvNextImageProcessor", {{"size", 8}, {"crop_pct", 1.5}}), "crop_pct must be"},
      {processor("ConvNextImageProcessor", {{"size", {{"height", 8}, {"width", 8}}}}),
       "size must be shortest_edge"},
      {processor("ViTImageProcessor", {{"size", 8}, {"compact_fit", "x"}}), "compact_fit must be"},
      {processor("DeiTImageProcessor", {{"size", 8}, {"do_resize", false}}),
       "do_center_crop must be false where do_resize is"},
      {processor("CLIPImageProcessor", {{"size", 8}, {"do_center_crop", false}}),
       "do_center_crop must be true where size is shortest_edge"},
      {processor("CLIPImageProcessor", {{"size", 8}}), "crop_size must be given"},
      {processor("CLIPImageProcessor", {{"size", 8}, {"crop_size", 9}}),
       "crop_size must be a part of size with its proportions, is 9 of 8"},
  };
  for (const auto& [object, message] : cases) {
    EXPECT_THAT(error_of([&] { read(object); }), HasSubstr(message));
  }
}

}  // namespace
}  // namespace compact
