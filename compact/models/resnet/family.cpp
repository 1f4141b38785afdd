// SPDX-License-Identifier: Apache-2.0
// config.json of residual networks: that of transformers where it has `depths`, else a form of this
// program's own, which says also what transformers has not (small images).
#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "compact/base/check.h"
#include "compact/base/model_numbers.h"
#include "compact/io/config_keys.h"
#include "compact/models/families.h"
#include "compact/models/image_processor.h"
#include "compact/models/labels.h"
#include "compact/models/resnet/resnet.h"

namespace compact {
namespace {

using nlohmann::json;

constexpr const char* kResnetType = "resnet";

class ResnetModel final : public ModelConfig {
 public:
  explicit ResnetModel(ResnetConfig net) : net_(std::move(net)) {
    height_ = width_ = net_.small_images ? 32 : 224;
  }
  explicit ResnetModel(const ConfigKeys& keys);
  std::unique_ptr<ModelConfig> clone() const override {
    return std::make_unique<ResnetModel>(*this);
  }

  ModelShape shape() const override {
    return {.channels = net_.channels,
            .height = height_,
            .width = width_,
            .mean = mean_,
            .deviation = deviation_,
            .image_fit = fit_,
            .classes = net_.classes,
            .labels = labels_,
            .hidden = net_.width};
  }

  void fit(const ModelShape& shape) override {
    net_.channels = shape.channels;
    net_.classes = shape.classes;
    net_.width = shape.hidden;
    height_ = shape.height;
    width_ = shape.width;
    mean_ = shape.mean;
    deviation_ = shape.deviation;
    fit_ = shape.image_fit;
    labels_ = shape.labels;
  }

  json to_json(const std::string& dtype) const override {
    if (net_.transformers_names) return in_transformers(dtype);
    return {{"model_type", kResnetType},
            {"blocks", net_.blocks},
            {"width", net_.width},
            {"bottleneck", net_.bottleneck},
            {"small_images", net_.small_images},
            {"channels", net_.channels},
            {"classes", net_.classes},
            {"image_size", height_ == width_ ? json(height_) : json{height_, width_}},
            {"image_mean", mean_},
            {"image_std", deviation_},
            {"class_names", labels_}};
  }
  std::map<std::string, std::string> files() const override {
    if (!net_.transformers_names) return {};
    return image_processor_files(shape());
  }
  std::unique_ptr<Network> build(const Policy& policy,
                                 const NetworkOptions& options) const override {
    return std::make_unique<Resnet>(net_, policy, options);
  }

 private:
  void read_own(const ConfigKeys& keys);
  void read_transformers(const ConfigKeys& keys);
  json in_transformers(const std::string& dtype) const;
  std::vector<int64_t> stage_widths() const;
  void check(const std::string& where) const;

  ResnetConfig net_;
  int64_t height_ = 0, width_ = 0;  // of images
  std::vector<double> mean_, deviation_;
  ImageFit fit_;
  std::vector<std::string> labels_;
};

ResnetModel::ResnetModel(const ConfigKeys& keys) {
  if (keys.find("depths")) {
    read_transformers(keys);
  } else {
    read_own(keys);
  }
  check(keys.where());
}

// One number, or height and width.
std::pair<int64_t, int64_t> sides_of(const ConfigKeys& keys) {
  const json& size = keys.required("image_size");
  if (!size.is_array()) {
    const int64_t side = keys.required_integer("image_size");
    return {side, side};
  }
  const auto sides = keys.required_list<int64_t>("image_size");
  COMPACT_CHECK(sides.size() == 2, keys.where(),
                ": image_size must be one number, or height and width, is ", size.dump());
  return {sides[0], sides[1]};
}

void ResnetModel::read_own(const ConfigKeys& keys) {
  mean_ = keys.required_list<double>("image_mean");
  deviation_ = keys.required_list<double>("image_std");
  net_.blocks = keys.required_list<int64_t>("blocks");
  net_.width = keys.required_integer("width");
  keys.required("bottleneck"), keys.required("small_images");
  net_.bottleneck = keys.flag("bottleneck", false);
  net_.small_images = keys.flag("small_images", false);
  net_.channels = keys.required_integer("channels");
  net_.classes = keys.required_integer("classes");
  std::tie(height_, width_) = sides_of(keys);
  if (keys.find("class_names")) labels_ = keys.required_list<std::string>("class_names");
}

void ResnetModel::read_transformers(const ConfigKeys& keys) {
  const std::string& where = keys.where();
  const std::string act = keys.text("hidden_act", "relu");
  COMPACT_CHECK(act == "relu", where, ": hidden_act must be relu, is `", act, "`");
  const std::string layer = keys.text("layer_type", "bottleneck");
  COMPACT_CHECK(layer == "basic" || layer == "bottleneck", where,
                ": layer_type must be basic or bottleneck, is `", layer, "`");
  const std::string problem = keys.text("problem_type", "single_label_classification");
  COMPACT_CHECK(problem == "single_label_classification", where,
                ": problem_type must be single_label_classification, is `", problem, "`");
  for (const char* key : {"downsample_in_first_stage", "downsample_in_bottleneck"}) {
    COMPACT_CHECK(!keys.flag(key, false), where, ": ", key, " must be false, is true");
  }
  keys.refuse_quantized();
  net_.transformers_names = true;
  net_.blocks = keys.required_list<int64_t>("depths");
  net_.bottleneck = layer == "bottleneck";
  net_.width = keys.integer("embedding_size", 64);
  net_.channels = keys.integer("num_channels", 3);
  check_sizes({{"embedding_size", net_.width}}, where);
  const std::vector<int64_t> widths = keys.find("hidden_sizes")
                                          ? keys.required_list<int64_t>("hidden_sizes")
                                          : std::vector<int64_t>{256, 512, 1024, 2048};
  COMPACT_CHECK(widths == stage_widths(), where, ": hidden_sizes must be ", json(stage_widths()),
                " with embedding_size ", net_.width, ", are ", json(widths));
  labels_ = read_labels(keys);
  net_.classes = static_cast<int64_t>(labels_.size());
  if (labels_ == numbered_labels(net_.classes)) labels_.clear();
  height_ = width_ = 224;
  if (keys.find("image_size")) std::tie(height_, width_) = sides_of(keys);
  // ImageNet's, which published models were trained with.
  mean_ = {0.485, 0.456, 0.406};
  deviation_ = {0.229, 0.224, 0.225};
  if (net_.channels != 3) {
    const auto channels = static_cast<size_t>(std::clamp<int64_t>(net_.channels, 0, 1024));
    mean_.assign(channels, 0.5);
    deviation_.assign(channels, 0.5);
  }
  if (keys.find("image_mean")) mean_ = keys.required_list<double>("image_mean");
  if (keys.find("image_std")) deviation_ = keys.required_list<double>("image_std");
}

// Channels of each stage's output.
std::vector<int64_t> ResnetModel::stage_widths() const {
  std::vector<int64_t> widths;
  int64_t width = net_.bottleneck ? 4 * net_.width : net_.width;
  for (size_t i = 0; i < std::min<size_t>(8, net_.blocks.size()); ++i, width *= 2) {
    widths.push_back(width);
  }
  return widths;
}

json ResnetModel::in_transformers(const std::string& dtype) const {
  json object = {{"architectures", json::array({"ResNetForImageClassification"})},
                 {"model_type", kResnetType},
                 {"depths", net_.blocks},
                 {"layer_type", net_.bottleneck ? "bottleneck" : "basic"},
                 {"embedding_size", net_.width},
                 {"hidden_sizes", stage_widths()},
                 {"hidden_act", "relu"},
                 {"num_channels", net_.channels},
                 {"problem_type", "single_label_classification"},
                 {"downsample_in_first_stage", false},
                 {"downsample_in_bottleneck", false},
                 {"image_size", height_ == width_ ? json(height_) : json{height_, width_}},
                 {"image_mean", mean_},
                 {"image_std", deviation_},
                 {"torch_dtype", dtype},
                 {"dtype", dtype}};
  write_labels(labels_.empty() ? numbered_labels(net_.classes) : labels_, object);
  return object;
}

void ResnetModel::check(const std::string& where) const {
  const auto within = [&](const char* name, double value, double least, double most) {
    COMPACT_CHECK(value >= least && value <= most, where, ": ", name, " must be from ", least,
                  " to ", most, ", is ", value);
  };
  within("the number of stages in blocks", static_cast<double>(net_.blocks.size()), 1, 8);
  for (const int64_t n : net_.blocks) within("blocks", static_cast<double>(n), 1, 1000);
  within("width", static_cast<double>(net_.width), 1, 1 << 16);
  within("classes", static_cast<double>(net_.classes), 1, 1 << 20);
  within("channels", static_cast<double>(net_.channels), 1, 1024);
  for (const int64_t side : {height_, width_}) {
    within("image_size", static_cast<double>(side), 1, 4096);
  }
  for (const auto* list : {&mean_, &deviation_}) {
    COMPACT_CHECK(static_cast<int64_t>(list->size()) == net_.channels, where,
                  ": image_mean and image_std must have a value for each of ", net_.channels,
                  " channels, have ", list->size());
  }
  for (const double mean : mean_) within("image_mean", mean, -1e3, 1e3);
  for (const double deviation : deviation_) within("image_std", deviation, 1e-6, 1e3);
  COMPACT_CHECK(labels_.empty() || static_cast<int64_t>(labels_.size()) == net_.classes, where,
                ": class_names must be none or ", net_.classes, ", are ", labels_.size());
}

}  // namespace

extern const FamilyInfo resnet_family = {
    .name = "resnet",
    .types = {{kResnetType, ModelUse::kImages}},
    .models = models_of<ResnetModel>(resnets()),
    .read = [](const json& config, std::string_view where) -> std::unique_ptr<ModelConfig> {
      return std::make_unique<ResnetModel>(ConfigKeys(config, std::string(where)));
    },
    .image_processor = "ConvNextImageProcessor",
};

}  // namespace compact
