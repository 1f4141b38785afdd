// SPDX-License-Identifier: Apache-2.0
// Classes of images, by a residual network.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/images/image_dataset.h"
#include "compact/data/images/read_images.h"
#include "compact/data/images/resize_images.h"
#include "compact/data/samples/split.h"
#include "compact/io/checksum.h"
#include "compact/io/json_file.h"
#include "compact/models/resnet.h"
#include "compact/tasks/classifier_task.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/splits.h"
#include "compact/tasks/task.h"

namespace compact {
namespace {

using nlohmann::json;

constexpr const char* kImageModelType = "resnet";

// What config.json holds.
struct ImageModel {
  ResnetConfig net;
  ImageSize size;
  PixelStatistics statistics;
  std::vector<std::string> names;  // of the classes; empty: there are none
};

json to_json(const ImageSize& size) {
  return size.height == size.width ? json(size.height) : json{size.height, size.width};
}
void from_json(const json& j, ImageSize& size) {
  const bool one = j.is_number();
  (one ? j : j.at(0)).get_to(size.height);
  (one ? j : j.at(1)).get_to(size.width);
}

json to_json(const ImageModel& m) {
  return {{"model_type", kImageModelType},
          {"blocks", m.net.blocks},
          {"width", m.net.width},
          {"bottleneck", m.net.bottleneck},
          {"small_images", m.net.small_images},
          {"channels", m.net.channels},
          {"classes", m.net.classes},
          {"image_size", to_json(m.size)},
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
  for (const int64_t side : {m.size.height, m.size.width}) {
    within("image_size", static_cast<double>(side), 1, 4096);
  }
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
    COMPACT_CHECK(j.at("model_type") == kImageModelType, path.string(), ": model_type must be ",
                  kImageModelType, ", is ", j.at("model_type").dump());
    j.at("blocks").get_to(m.net.blocks);
    j.at("width").get_to(m.net.width);
    j.at("bottleneck").get_to(m.net.bottleneck);
    j.at("small_images").get_to(m.net.small_images);
    j.at("channels").get_to(m.net.channels);
    j.at("classes").get_to(m.net.classes);
    from_json(j.at("image_size"), m.size);
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
  ImageModel m;
  if (c.model.empty()) {
    m = read_model(c.model_name_or_path);
  } else {
    m.net = resnet_named(c.model).config;
    m.net.width =
        std::max<int64_t>(1, std::llround(c.width_mult * static_cast<double>(m.net.width)));
    const int64_t side = m.net.small_images ? 32 : 224;
    m.size = {side, side};
  }
  if (c.image_size > 0) m.size = {c.image_size, c.image_size};
  return m;
}

void check_image(const TrainConfig& c) {
  if (!c.model.empty()) resnet_named(c.model);
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

// A model has one size of images: that of the files it is first trained on, or --image_size. Others
// are scaled to it, which is said unless it was asked for.
void open_data(const TrainConfig& c, ImageModel& m, Task& task,
               std::vector<std::string>& warnings) {
  const auto read = [&](const std::vector<std::string>& files, std::optional<ImageSize> size) {
    LabelledImages data = read_images(files, size);
    if (c.image_size == 0) {
      warnings.insert(warnings.end(), data.warnings.begin(), data.warnings.end());
    }
    return data;
  };
  std::optional<LabelledImages> train;
  if (!c.train_file.empty()) {
    const bool own_size = !c.model.empty() && c.image_size == 0;
    train = read(c.train_file, own_size ? std::nullopt : std::optional(m.size));
    task.checksum = checksum_of(*train);
    if (!c.model.empty()) {
      m.net.channels = train->images.size(1);
      m.net.classes = train->classes;
      m.statistics = pixel_statistics(train->images);
      m.names = train->class_names;
    }
    train = fitted(std::move(*train), c.train_file[0], m);
    m.size = size_of(train->images);
  }
  const uint64_t key = key_of(c, RandomUse::kData);
  const auto whole = [&](const std::vector<std::string>& files) -> std::unique_ptr<Dataset> {
    if (files.empty()) return nullptr;
    LabelledImages data = fitted(read(files, m.size), files[0], m);
    std::vector<int64_t> all = all_samples(data.images.size(0));
    return std::make_unique<ImageDataset>(std::move(data), std::move(all), m.statistics,
                                          Augmentation{}, key);
  };
  task.validation = whole(c.validation_file);
  task.test = whole(c.test_file);
  if (!train) return;
  const Augmentation random{.shift = std::min(m.size.height, m.size.width) / 8, .mirror = true};
  const auto part_of_it = [&](std::vector<int64_t> samples, bool training) {
    return std::make_unique<ImageDataset>(*train, std::move(samples), m.statistics,
                                          training && c.augment ? random : Augmentation{}, key);
  };
  split_samples(c, train->images.size(0), part_of_it, task, warnings);
  task.data_text = cat(format_count(task.train->size()), " images, ", train->images.size(1), " x ",
                       train->images.size(2), " x ", train->images.size(3), ", ", train->classes,
                       " classes", held_out_text(task));
}

Task open_image(const TrainConfig& c, const Progress&, std::vector<std::string>& warnings) {
  Task task;
  ImageModel m = model_of(c);
  open_data(c, m, task, warnings);
  task.config = to_json(m);
  task.unit = "images";
  task.network_text = cat(m.net.classes, " classes, width ", m.net.width);
  task.network = classifier_of<Resnet>(m.net);
  task.inputs = [m](const TrainConfig&, at::Device device, int64_t batch) {
    return StepInputs{
        {at::zeros({batch, m.net.channels, m.size.height, m.size.width}, at::device(device))},
        at::zeros({batch}, at::device(device).dtype(at::kLong))};
  };
  return task;
}

}  // namespace

extern const TaskInfo image_classification = {
    .name = "image-classification",
    .summary = "classes of images, by a residual network",
    .check = check_image,
    .open = open_image,
    .model_types = {kImageModelType},
    .compared = "off,exact,gact-l1",
};

}  // namespace compact
