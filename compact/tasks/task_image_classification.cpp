// SPDX-License-Identifier: Apache-2.0
// Classification of images.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "compact/base/check.h"
#include "compact/base/text.h"
#include "compact/data/images/image_dataset.h"
#include "compact/data/images/read_images.h"
#include "compact/data/images/resize_images.h"
#include "compact/data/samples/split.h"
#include "compact/io/checksum.h"
#include "compact/models/labels.h"
#include "compact/tasks/setup.h"
#include "compact/tasks/splits.h"
#include "compact/tasks/task.h"
#include "compact/tasks/task_model.h"

namespace compact {
namespace {

ImageSize size_of(const ModelShape& m) { return {m.height, m.width}; }

uint64_t checksum_of(const LabelledImages& data) {
  const at::Tensor images = data.images.contiguous(), labels = data.labels.contiguous();
  const auto hash = [](const at::Tensor& t) {
    return xxh3({static_cast<const char*>(t.const_data_ptr()), t.nbytes()});
  };
  return std::stoull(xxh3(hash(images) + hash(labels)), nullptr, 16);
}

// Whether a model's head is for the data's classes; a head without names gets theirs.
bool is_for_classes(ModelShape& m, const LabelledImages& data) {
  if (m.labels.empty() || data.class_names.empty()) {
    if (data.classes != m.classes || !m.labels.empty()) return false;
    m.labels = data.class_names;
    return true;
  }
  return data.classes <= m.classes &&
         std::ranges::all_of(data.class_names, [&](const std::string& name) {
           return std::ranges::find(m.labels, name) != m.labels.end();
         });
}

// The images in the sizes that the model reads.
LabelledImages fitted(LabelledImages data, const std::string& file, const ModelShape& m) {
  const auto s = data.images.sizes();
  COMPACT_CHECK(s[1] == m.channels && data.classes <= m.classes, file, ": images have ", s[1],
                " channels and ", data.classes, " classes, the model ", m.channels, " and ",
                m.classes);
  COMPACT_CHECK(!m.labels.empty() || data.class_names.empty() || data.classes == m.classes, file,
                ": has ", data.classes, " classes with names, the model ", m.classes,
                " without: they cannot be matched");
  try {
    return with_classes(std::move(data), m.labels);
  } catch (const InputError& e) {
    fail(file, ": ", e.what());
  }
}

// A model has one size of images: that of the files it is first trained on, or --image_size. Images
// of other sizes are scaled to it, with a line in `warnings` unless --image_size was given.
void open_data(const TrainConfig& c, ModelShape& m, Task& task,
               std::vector<std::string>& warnings) {
  const auto read = [&](const std::vector<std::string>& files, std::optional<ImageSize> size) {
    LabelledImages data = read_images(files, size, m.image_fit, c.strict);
    warnings.insert(warnings.end(), data.warnings.begin(), data.warnings.end());
    if (c.image_size == 0) {
      warnings.insert(warnings.end(), data.scaled.begin(), data.scaled.end());
    }
    return data;
  };
  std::optional<LabelledImages> train;
  if (!c.train_file.empty()) {
    const bool own_size = !c.model.empty() && c.image_size == 0;
    train = read(c.train_file, own_size ? std::nullopt : std::optional(size_of(m)));
    task.checksum = checksum_of(*train);
    if (!c.model.empty()) {
      const PixelStatistics pixels = pixel_statistics(train->images);
      m.channels = train->images.size(1);
      m.classes = train->classes;
      m.mean = pixels.mean;
      m.deviation = pixels.deviation;
      m.labels = train->class_names;
    } else if (!is_for_classes(m, *train)) {
      warnings.push_back(cat(
          c.model_name_or_path, " was trained for other classes: ",
          train->classes == m.classes ? "its head goes on for these" : "a new head is trained"));
      m.classes = train->classes;
      m.labels = train->class_names;
    }
    train = fitted(std::move(*train), c.train_file[0], m);
    m.height = train->images.size(2);
    m.width = train->images.size(3);
  }
  const uint64_t key = key_of(c, RandomUse::kData);
  const PixelStatistics statistics{m.mean, m.deviation};
  const auto whole = [&](const std::vector<std::string>& files) -> std::unique_ptr<Dataset> {
    if (files.empty()) return nullptr;
    LabelledImages data = fitted(read(files, size_of(m)), files[0], m);
    if (!m.labels.empty() && data.class_names.empty() && m.labels != numbered_labels(m.classes)) {
      warnings.push_back(cat(files[0], " has numbers of classes, the model names (", m.labels[0],
                             ", ...): number 0 is taken to be ", m.labels[0], ", and so on"));
    }
    if (m.labels.empty() && !data.class_names.empty()) {
      warnings.push_back(cat(c.model_name_or_path,
                             " has no names of classes: they are taken to be ", "those of ",
                             files[0], ", in the order of their names"));
    }
    std::vector<int64_t> all = all_samples(data.images.size(0));
    return std::make_unique<ImageDataset>(std::move(data), std::move(all), statistics,
                                          Augmentation{}, key);
  };
  task.validation = whole(c.validation_file);
  task.test = whole(c.test_file);
  if (!train) return;
  const Augmentation random{.shift = std::min(m.height, m.width) / 8, .mirror = true};
  const auto part_of_it = [&](std::vector<int64_t> samples, bool training) {
    return std::make_unique<ImageDataset>(*train, std::move(samples), statistics,
                                          training && c.augment ? random : Augmentation{}, key);
  };
  split_samples(c, train->images.size(0), part_of_it, task, warnings);
  task.data_text = cat(format_count(task.train->size()), " images, ", train->images.size(1), " x ",
                       train->images.size(2), " x ", train->images.size(3), ", ", train->classes,
                       " classes", held_out_text(task));
}

Task open_image(const TrainConfig& c, const Opening&, std::vector<std::string>& warnings) {
  Task task;
  const std::unique_ptr<ModelConfig> model = model_of(c);
  ModelShape m = model->shape();
  if (!c.model.empty()) {
    COMPACT_CHECK(m.hidden > 0 || c.width_mult == 1, "--width_mult ", c.width_mult, ": model ",
                  c.model, " has widths of its own");
    const double width = c.width_mult * static_cast<double>(m.hidden);
    m.hidden = std::max<int64_t>(1, std::llround(width));
  } else if (c.width_mult != 1) {
    warnings.push_back(
        cat("--width_mult takes no effect: ", c.model_name_or_path, " has widths of its own"));
  }
  if (c.image_size > 0) m.height = m.width = c.image_size;
  open_data(c, m, task, warnings);
  model->fit(m);
  set_model(c, *model, task);
  task.unit = "images";
  m = model->shape();
  task.network_text = cat(m.classes, " classes", m.hidden > 0 ? cat(", width ", m.hidden) : "");
  task.inputs = [m](const TrainConfig&, at::Device device, int64_t batch) {
    return StepInputs{{at::zeros({batch, m.channels, m.height, m.width}, at::device(device))},
                      at::zeros({batch}, at::device(device).dtype(at::kLong))};
  };
  return task;
}

}  // namespace

extern const TaskInfo image_classification = {
    .name = "image-classification",
    .summary = "classes of images",
    .open = open_image,
    .use = ModelUse::kImages,
    .compared = "off,exact,gact-l1",
};

}  // namespace compact
