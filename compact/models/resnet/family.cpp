// SPDX-License-Identifier: Apache-2.0
// config.json of residual networks: that of transformers where it has `depths`, else a form of this
// program's own, which also has forms that transformers lacks (small images).
#include <algorithm>

#include "compact/base/check.h"
#include "compact/models/family_model.h"
#include "compact/models/image_processor.h"
#include "compact/models/labels.h"
#include "compact/models/resnet/resnet.h"

namespace compact {
namespace {

constexpr const char* kResnetType = "resnet";

// A network, and the images that it was made for.
struct ResnetFile : ResnetConfig {
  explicit ResnetFile(ResnetConfig net = {}) : ResnetConfig(std::move(net)) {
    image_height = image_width = small_images ? 32 : 224;
  }
  int64_t image_height, image_width;
  std::vector<double> mean, deviation;
  std::vector<std::string> labels;
  bool operator==(const ResnetFile&) const = default;

  // ImageNet's values, which published models were trained with.
  void take_usual_values() {
    mean = {0.485, 0.456, 0.406};
    deviation = {0.229, 0.224, 0.225};
    if (channels != 3) mean = deviation = std::vector<double>(static_cast<size_t>(channels), 0.5);
  }
};

// Channels of each stage's output.
std::vector<int64_t> stage_widths(const ResnetFile& c) {
  std::vector<int64_t> widths;
  int64_t width = c.bottleneck ? 4 * c.width : c.width;
  for (size_t i = 0; i < std::min<size_t>(8, c.blocks.size()); ++i, width *= 2) {
    widths.push_back(width);
  }
  return widths;
}

void own_keys(ConfigRows& rows, ResnetFile& c) {
  constexpr auto kRequired = ConfigRows::kRequired;
  rows.put("model_type", kResnetType);
  rows.list("image_mean", c.mean, kRequired);
  rows.list("image_std", c.deviation, kRequired);
  rows.list("blocks", c.blocks, kRequired);
  rows.size("width", c.width, kRequired, 1 << 16);
  rows.flag("bottleneck", c.bottleneck, kRequired);
  rows.flag("small_images", c.small_images, kRequired);
  rows.size("channels", c.channels, kRequired, 1024);
  rows.size("classes", c.classes, kRequired, kMostLabels);
  if (rows.reads()) rows.given.required("image_size");
  rows.sides("image_size", c.image_height, c.image_width);
  rows.list("class_names", c.labels);
}

void transformers_keys(ConfigRows& rows, ResnetFile& c) {
  rows.put("model_type", kResnetType);
  rows.put("architectures", {"ResNetForImageClassification"});
  rows.choice("hidden_act", {"relu"});
  c.bottleneck =
      rows.choice("layer_type", {"basic", "bottleneck"}, rows.reads() || c.bottleneck) > 0;
  rows.choice("problem_type", {"single_label_classification"});
  for (const char* key : {"downsample_in_first_stage", "downsample_in_bottleneck"}) {
    rows.never({key});
    rows.put(key, false);
  }
  rows.given.refuse_quantized();
  rows.list("depths", c.blocks, ConfigRows::kRequired);
  rows.size("embedding_size", c.width, ConfigRows::kOptional, 1 << 16);
  rows.size("num_channels", c.channels, ConfigRows::kOptional, 1024);
  const std::vector<int64_t> wanted = stage_widths(c);
  std::vector<int64_t> widths = rows.reads() ? std::vector<int64_t>{256, 512, 1024, 2048} : wanted;
  rows.list("hidden_sizes", widths);
  COMPACT_CHECK(widths == wanted, rows.where(), ": hidden_sizes must be ", nlohmann::json(wanted),
                " with embedding_size ", c.width, ", are ", nlohmann::json(widths));
  class_rows(rows, c.classes, c.labels);
  rows.sides("image_size", c.image_height, c.image_width);
  if (rows.reads()) c.take_usual_values();
  rows.list("image_mean", c.mean);
  rows.list("image_std", c.deviation);
  rows.put_dtypes();
}

void keys_of(ConfigRows& rows, ResnetFile& c) {
  if (rows.reads()) c.transformers_names = rows.given.find("depths") != nullptr;
  c.transformers_names ? transformers_keys(rows, c) : own_keys(rows, c);
  const std::string& where = rows.where();
  const auto within = [&](const char* name, double value, double least, double most) {
    COMPACT_CHECK(value >= least && value <= most, where, ": ", name, " must be from ", least,
                  " to ", most, ", is ", value);
  };
  within("the number of stages in blocks", static_cast<double>(c.blocks.size()), 1, 8);
  for (const int64_t n : c.blocks) within("blocks", static_cast<double>(n), 1, 1000);
  for (const int64_t side : {c.image_height, c.image_width}) {
    within("image_size", static_cast<double>(side), 1, 4096);
  }
  for (const auto* list : {&c.mean, &c.deviation}) {
    COMPACT_CHECK(static_cast<int64_t>(list->size()) == c.channels, where,
                  ": image_mean and image_std must have a value for each of ", c.channels,
                  " channels, have ", list->size());
  }
  for (const double mean : c.mean) within("image_mean", mean, -1e3, 1e3);
  for (const double deviation : c.deviation) within("image_std", deviation, 1e-6, 1e3);
  COMPACT_CHECK(c.labels.empty() || static_cast<int64_t>(c.labels.size()) == c.classes, where,
                ": class_names must be none or ", c.classes, ", are ", c.labels.size());
}

class ResnetModel final : public FamilyModel<ResnetModel, ResnetFile, Resnet> {
 public:
  using FamilyModel::FamilyModel;
  explicit ResnetModel(const ResnetConfig& net) : FamilyModel(ResnetFile(net)) {}

  ModelShape shape() const override {
    return {.channels = c_.channels,
            .height = c_.image_height,
            .width = c_.image_width,
            .mean = c_.mean,
            .deviation = c_.deviation,
            .image_fit = fit_,
            .classes = c_.classes,
            .labels = c_.labels,
            .hidden = c_.width};
  }

  void fit(const ModelShape& shape) override {
    c_.channels = shape.channels;
    c_.classes = shape.classes;
    c_.width = shape.hidden;
    c_.image_height = shape.height;
    c_.image_width = shape.width;
    c_.mean = shape.mean;
    c_.deviation = shape.deviation;
    if (c_.mean.empty()) c_.take_usual_values();  // a plan without images
    fit_ = shape.image_fit;
    c_.labels = shape.labels;
  }

  std::map<std::string, std::string> files() const override {
    if (!c_.transformers_names) return {};
    return image_processor_files(shape());
  }

 private:
  ImageFit fit_;
};

}  // namespace

extern const FamilyInfo resnet_family = {
    .name = "resnet",
    .types = {{kResnetType, ModelUse::kImages}},
    .models = models_of<ResnetModel>(resnets()),
    .read = &ResnetModel::read,
    .image_processor = "ConvNextImageProcessor",
};

}  // namespace compact
