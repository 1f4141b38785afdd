// SPDX-License-Identifier: Apache-2.0
#include "compact/base/check.h"
#include "compact/models/family_model.h"
#include "compact/models/image_processor.h"
#include "compact/models/vit/vit.h"

namespace compact {
namespace {

class VitModel final : public FamilyModel<VitModel, VitConfig, Vit> {
 public:
  using FamilyModel::FamilyModel;

  ModelShape shape() const override {
    const std::vector<double> half(static_cast<size_t>(c_.num_channels), 0.5);
    return {.channels = c_.num_channels,
            .height = c_.height,
            .width = c_.width,
            .mean = c_.image_mean.empty() ? half : c_.image_mean,
            .deviation = c_.image_std.empty() ? half : c_.image_std,
            .image_fit = fit_,
            .classes = c_.classes,
            .labels = c_.labels};
  }
  void fit(const ModelShape& shape) override {
    c_.num_channels = shape.channels;
    c_.height = shape.height;
    c_.width = shape.width;
    c_.image_mean = shape.mean;
    c_.image_std = shape.deviation;
    fit_ = shape.image_fit;
    c_.classes = shape.classes;
    c_.labels = shape.labels;
    if (shape.dropout >= 0) c_.hidden_dropout = c_.attention_dropout = shape.dropout;
    checked(c_);
  }
  void shrink() override { c_.num_hidden_layers = 1; }

  std::map<std::string, std::string> files() const override {
    return image_processor_files(shape());
  }

 private:
  ImageFit fit_;
};

ModelInfo vit(const char* name, int64_t width, int64_t layers, int64_t heads, int64_t patch,
              int64_t image) {
  VitConfig c{.hidden_size = width,
              .intermediate_size = 4 * width,
              .num_hidden_layers = layers,
              .num_attention_heads = heads,
              .height = image,
              .width = image,
              .patch_size = patch};
  return {name,
          cat("patches of ", patch, " x ", patch, ", hidden ", width, ", MLP ", 4 * width, ", ",
              layers, " layers, ", heads, " heads"),
          std::make_shared<const VitModel>(std::move(c))};
}

}  // namespace

extern const FamilyInfo vit_family = {
    .name = "vit",
    .types = {{"vit", ModelUse::kImages}},
    .models = {vit("vit-mini", 192, 6, 3, 4, 32), vit("vit-tiny", 192, 12, 3, 16, 224),
               vit("vit-small", 384, 12, 6, 16, 224), vit("vit-base", 768, 12, 12, 16, 224),
               vit("vit-large", 1024, 24, 16, 16, 224)},
    .read = &VitModel::read,
};

}  // namespace compact
