// SPDX-License-Identifier: Apache-2.0
// config.json of residual networks is a form of this program's own.
#include <nlohmann/json.hpp>

#include "compact/base/check.h"
#include "compact/io/config_keys.h"
#include "compact/models/families.h"
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
    labels_ = shape.labels;
  }

  json to_json(const std::string&) const override {
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
  std::unique_ptr<Network> build(const Policy& policy,
                                 const NetworkOptions& options) const override {
    return std::make_unique<Resnet>(net_, policy, options);
  }

 private:
  void check(const std::string& where) const;

  ResnetConfig net_;
  int64_t height_ = 0, width_ = 0;  // of images
  std::vector<double> mean_, deviation_;
  std::vector<std::string> labels_;
};

ResnetModel::ResnetModel(const ConfigKeys& keys)
    : mean_(keys.required_list<double>("image_mean")),
      deviation_(keys.required_list<double>("image_std")) {
  net_.blocks = keys.required_list<int64_t>("blocks");
  net_.width = keys.required_integer("width");
  keys.required("bottleneck"), keys.required("small_images");
  net_.bottleneck = keys.flag("bottleneck", false);
  net_.small_images = keys.flag("small_images", false);
  net_.channels = keys.required_integer("channels");
  net_.classes = keys.required_integer("classes");
  if (keys.required("image_size").is_array()) {
    const auto size = keys.required_list<int64_t>("image_size");
    COMPACT_CHECK(size.size() == 2, keys.where(),
                  ": image_size must be one number, or height and width, is ",
                  keys.required("image_size").dump());
    height_ = size[0];
    width_ = size[1];
  } else {
    height_ = width_ = keys.required_integer("image_size");
  }
  if (keys.find("class_names")) labels_ = keys.required_list<std::string>("class_names");
  check(keys.where());
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
};

}  // namespace compact
