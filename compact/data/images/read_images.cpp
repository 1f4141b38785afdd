// SPDX-License-Identifier: Apache-2.0
#include "compact/data/images/read_images.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include "compact/base/check.h"
#include "compact/data/files/byte_source.h"
#include "compact/data/images/image_archive.h"
#include "compact/data/images/resize_images.h"

namespace compact {
namespace {

constexpr std::string_view kIdxImages = "images-idx3-ubyte", kIdxLabels = "labels-idx1-ubyte";

bool is_idx(std::string_view path) { return without_compression(path).ends_with(kIdxImages); }
bool is_records(std::string_view path) { return without_compression(path).ends_with(".bin"); }
bool is_archive(std::string_view path) {
  for (const std::string_view ending :
       {".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tgz", ".txz", ".zip"}) {
    if (path.ends_with(ending)) return true;
  }
  return false;
}

// The labels beside `path`, first with the same compression.
std::string labels_beside(const std::string& path) {
  const std::string_view name = without_compression(path);
  const std::string_view own = std::string_view(path).substr(name.size());
  const std::string labels =
      std::string(name.substr(0, name.size() - kIdxImages.size())).append(kIdxLabels);
  for (const std::string_view ending : {own, std::string_view(), std::string_view(".gz"),
                                        std::string_view(".xz"), std::string_view(".zst")}) {
    std::error_code ignored;
    const std::string candidate = labels + std::string(ending);
    if (std::filesystem::exists(candidate, ignored)) return candidate;
  }
  fail(path, ": its labels must be beside it as ", labels, "[.gz|.xz|.zst], there are none");
}

LabelledImages in_size(LabelledImages data, const std::string& path, std::optional<ImageSize> size,
                       const ImageFit& fit) {
  const ImageSize own = size_of(data.images);
  if (!size || !is_changed(own, *size, fit)) return data;
  data.images = resized(data.images, *size, fit);
  data.scaled.push_back(resized_text(path, data.images.size(0), own, *size));
  return data;
}

LabelledImages read_one(const std::string& path, std::optional<ImageSize> size, const ImageFit& fit,
                        bool strict) {
  if (is_idx(path)) return in_size(read_idx(path, labels_beside(path)), path, size, fit);
  if (is_records(path)) return in_size(read_cifar10(std::span(&path, 1)), path, size, fit);
  if (is_archive(path)) return read_image_archive(path, size, fit, strict);
  fail(path,
       ": no name of images; read are NAME-images-idx3-ubyte[.gz] with its labels beside it, "
       "records of CIFAR-10 (.bin, .bin.gz) and archives of class folders with JPEG or PNG files "
       "(.tar, .tar.gz, .tgz, .tar.xz, .zip), as `compact prepare --data ... --output NAME.tar` "
       "makes them of folders, Parquet or the hub");
}

}  // namespace

LabelledImages read_images(std::span<const std::string> paths, std::optional<ImageSize> size,
                           const ImageFit& fit, bool strict) {
  COMPACT_CHECK(!paths.empty(), "[images] at least one file is needed");
  if (std::all_of(paths.begin(), paths.end(), is_records)) {
    return in_size(read_cifar10(paths), paths[0], size, fit);
  }
  LabelledImages first = read_one(paths[0], size, fit, strict);
  if (paths.size() == 1) return first;
  std::vector<at::Tensor> images{first.images}, labels{first.labels};
  for (const std::string& path : paths.subspan(1)) {
    const LabelledImages more = read_one(path, size, fit, strict);
    COMPACT_CHECK(more.images.sizes().slice(1) == first.images.sizes().slice(1), path,
                  ": images have [channels, height, width] ", more.images.sizes().slice(1),
                  ", those of ", paths[0], " ", first.images.sizes().slice(1));
    COMPACT_CHECK(more.classes == first.classes && more.class_names == first.class_names, path,
                  ": its ", more.classes, " classes are not the ", first.classes, " of ", paths[0]);
    images.push_back(more.images);
    labels.push_back(more.labels);
    first.warnings.insert(first.warnings.end(), more.warnings.begin(), more.warnings.end());
    first.scaled.insert(first.scaled.end(), more.scaled.begin(), more.scaled.end());
  }
  first.images = at::cat(images);
  first.labels = at::cat(labels);
  return first;
}

}  // namespace compact
