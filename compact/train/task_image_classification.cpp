// SPDX-License-Identifier: Apache-2.0
// Classes of images, by a residual network.
#include <ATen/ATen.h>

#include <filesystem>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/image_dataset.h"
#include "compact/data/read_images.h"
#include "compact/data/split.h"
#include "compact/io/checksum.h"
#include "compact/io/json_file.h"
#include "compact/models/resnet.h"
#include "compact/train/classifier_task.h"
#include "compact/train/setup.h"
#include "compact/train/task.h"

namespace compact {
namespace {

using nlohmann::json;

constexpr const char* kModelType = "resnet";

// What config.json holds.
struct ImageModel {
  ResnetConfig net;
  int64_t pixels = 0;  // of a side
  PixelStatistics statistics;
  std::vector<std::string> names;  // of the classes; empty: there are none
};

json to_json(const ImageModel& m) {
  return {{"model_type", kModelType},
          {"blocks", m.net.blocks},
          {"width", m.net.width},
          {"bottleneck", m.net.bottleneck},
          {"small_images", m.net.small_images},
          {"channels", m.net.channels},
          {"classes", m.net.classes},
          {"image_size", m.pixels},
          {"image_mean", m.statistics.mean},
          {"image_std", m.statistics.deviation},
          {"class_names", m.names}};
}

void check(const ImageModel& m, const std::string& file) {
  const auto within = [&](const char* name, double value, double least, double most) {
    COMPACT_CHECK(value >= least && value <= most, file, ": ", name, " must be from ", least,
                  " to ", most, ", is ", value);
  };
  within("the number of stages in blocks", static_cast<double>(m.net.blocks.size()), 1, 8);
  for (const int64_t n : m.net.blocks) within("blocks", static_cast<double>(n), 1, 1000);
  within("width", static_cast<double>(m.net.width), 1, 1 << 16);
  within("classes", static_cast<double>(m.net.classes), 1, 1 << 20);
  within("channels", static_cast<double>(m.net.channels), 1, 1024);
  within("image_size", static_cast<double>(m.pixels), 1, 4096);
  for (const auto* list : {&m.statistics.mean, &m.statistics.deviation}) {
    COMPACT_CHECK(static_cast<int64_t>(list->size()) == m.net.channels, file,
                  ": image_mean and image_std must have a value for each of ", m.net.channels,
                  " channels, have ", list->size());
  }
  for (const double mean : m.statistics.mean) within("image_mean", mean, -1e3, 1e3);
  for (const double deviation : m.statistics.deviation) within("image_std", deviation, 1e-6, 1e3);
  COMPACT_CHECK(m.names.empty() || static_cast<int64_t>(m.names.size()) == m.net.classes, file,
                ": class_names must be none or ", m.net.classes, ", are ", m.names.size());
}

ImageModel read_model(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::path(folder) / "config.json";
  const json j = read_json(path);
  ImageModel m;
  try {
    COMPACT_CHECK(j.at("model_type") == kModelType, path.string(), ": model_type must be ",
                  kModelType, ", is ", j.at("model_type").dump());
    j.at("blocks").get_to(m.net.blocks);
    j.at("width").get_to(m.net.width);
    j.at("bottleneck").get_to(m.net.bottleneck);
    j.at("small_images").get_to(m.net.small_images);
    j.at("channels").get_to(m.net.channels);
    j.at("classes").get_to(m.net.classes);
    j.at("image_size").get_to(m.pixels);
    j.at("image_mean").get_to(m.statistics.mean);
    j.at("image_std").get_to(m.statistics.deviation);
    m.names = j.value("class_names", m.names);
  } catch (const json::exception& e) {
    fail(path.string(), ": not a model of this program: ", e.what());
  }
  check(m, path.string());
  return m;
}

ImageModel model_of(const TrainConfig& c) {
  if (c.model.empty()) return read_model(c.model_name_or_path);
  ImageModel m{.net = resnet_named(c.model).config};
  m.net.width = std::max<int64_t>(1, std::llround(c.width_mult * static_cast<double>(m.net.width)));
  m.pixels = c.image_size > 0 ? c.image_size : m.net.small_images ? 32 : 224;
  return m;
}

void check(const TrainConfig& c) {
  if (!c.model.empty()) resnet_named(c.model);
  constexpr double kWidest = 16;
  COMPACT_CHECK(c.model.empty() || (c.width_mult > 0 && c.width_mult <= kWidest),
                "--width_mult must be positive and at most ", kWidest, ", is ", c.width_mult);
}

uint64_t checksum_of(const LabelledImages& data) {
  const at::Tensor images = data.images.contiguous(), labels = data.labels.contiguous();
  const auto hash = [](const at::Tensor& t) {
    return xxh3({static_cast<const char*>(t.const_data_ptr()), t.nbytes()});
  };
  return std::stoull(xxh3(hash(images) + hash(labels)), nullptr, 16);
}

// As the model reads them.
LabelledImages fitted(LabelledImages data, const std::string& file, const ImageModel& m) {
  const auto s = data.images.sizes();
  COMPACT_CHECK(s[1] == m.net.channels && data.classes <= m.net.classes, file, ": images have ",
                s[1], " channels and ", data.classes, " classes, the model ", m.net.channels,
                " and ", m.net.classes);
  try {
    return with_classes(std::move(data), m.names);
  } catch (const InputError& e) {
    fail(file, ": ", e.what());
  }
}

void open_data(const TrainConfig& c, ImageModel& m, Task& task) {
  std::optional<LabelledImages> train;
  if (!c.train_file.empty()) {
    train = read_images(c.train_file);
    task.checksum = checksum_of(*train);
    if (!c.model.empty()) {
      m.net.channels = train->images.size(1);
      m.net.classes = train->classes;
      m.statistics = pixel_statistics(train->images);
      m.names = train->class_names;
    }
    train = fitted(std::move(*train), c.train_file[0], m);
    m.pixels = train->images.size(2);
  }
  const uint64_t key = key_of(c, RandomUse::kData);
  const auto whole = [&](const std::vector<std::string>& files) -> std::unique_ptr<Dataset> {
    if (files.empty()) return nullptr;
    LabelledImages data = fitted(read_images(files), files[0], m);
    std::vector<int64_t> all = all_samples(data.images.size(0));
    return std::make_unique<ImageDataset>(std::move(data), std::move(all), m.statistics,
                                          Augmentation{}, key);
  };
  task.validation = whole(c.validation_file);
  task.test = whole(c.test_file);
  if (!train) return;
  const double part = c.validation_file.empty() ? c.validation_split : 0;
  const SampleSplit split = drawn_split(train->images.size(0), part, derive(key, 1));
  if (!split.held_out.empty()) {
    task.validation =
        std::make_unique<ImageDataset>(*train, split.held_out, m.statistics, Augmentation{}, key);
  }
  task.train = std::make_unique<ImageDataset>(
      *train, split.train, m.statistics,
      c.augment ? Augmentation{.shift = m.pixels / 8, .mirror = true} : Augmentation{}, key);
  task.data_text =
      cat(format_count(task.train->size()), " images, ", train->images.size(1), " x ",
          train->images.size(2), " x ", train->images.size(3), ", ", train->classes, " classes",
          task.validation ? cat(", validation ", format_count(task.validation->size())) : "",
          task.test ? cat(", test ", format_count(task.test->size())) : "");
}

Task open(const TrainConfig& c, const Progress&, std::vector<std::string>& warnings) {
  Task task;
  ImageModel m = model_of(c);
  open_data(c, m, task);
  if (!c.validation_file.empty() && c.validation_split != TrainConfig().validation_split) {
    warnings.push_back("--validation_split takes no effect: there is a --validation_file");
  }
  if (!c.train_file.empty() && c.image_size > 0) {
    warnings.push_back("--image_size takes no effect: images keep their own size");
  }
  task.config = to_json(m);
  task.unit = "images";
  task.network_text = cat(m.net.classes, " classes, width ", m.net.width);
  set_classifier<Resnet>(c, m.net, task);
  task.inputs = [m](at::Device device, int64_t batch) {
    return StepInputs{{at::zeros({batch, m.net.channels, m.pixels, m.pixels}, at::device(device))},
                      at::zeros({batch}, at::device(device).dtype(at::kLong))};
  };
  return task;
}

}  // namespace

extern const TaskInfo image_classification = {
    "image-classification",
    "classes of images, by a residual network",
    check,
    open,
    {kModelType},
    {"width_mult", "augment", "image_size", "label_smoothing_factor"}};

}  // namespace compact
